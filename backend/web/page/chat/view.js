/** The view of a chat: messages, composer, and a panel at the side. */
import { act, api, attempt, characters, chats, fill, h, icon, on, personas, set, style, t } from "../core.js";
import { chronicleWatch } from "../memory/watch.js";
import { follow } from "../play/changes.js";
import { stage } from "../play/stage.js";
import { keys } from "./actions.js";
import { backdrop } from "./background.js";
import { cast, membersOf, seating } from "./cast.js";
import { composer } from "./composer.js";
import { costing } from "./cost.js";
import { greetings } from "./greetings.js";
import { asked } from "./model.js";
import { hints } from "./hints.js";
import { Path } from "./path.js";
import { scroller } from "./scroller.js";
import { messageSelection } from "./selection.js";
import { turns } from "./turn.js";
import { watch } from "./watch.js";

/** Panels with the icon of their button in the header, a style sheet, and the module. */
const PANELS = {
  members: [null, "chat", () => import("./people.js")],
  knows: [null, "memory", () => import("./knows.js")],
  find: ["search", "chat", () => import("./find.js")],
  world: ["world", "campaign", () => import("../campaign/panel.js")],
  context: ["layers", "inspector", () => import("../inspector/panel.js")],
  settings: ["settings", "chat", () => import("./settings.js")],
};
const NARROW = matchMedia("(max-width: 68rem)");
/** Messages of a chat that may still get an automatic title. */
const TITLED_WITHIN = 8;

export default async function view({ params: { id }, query, signal, title }) {
  const place = `#/chats/${id}`;
  const path = new Path(id, signal);
  const voice = h("div.unseen", { role: "status" });
  const heading = h("h1.unseen");
  const room = { signal, path, events: new EventTarget(), announce: (text) => (voice.textContent = text) };

  /** Load the chat and its campaign again after a change. */
  room.refresh = async () => {
    const chat = api.get(`/chats/${id}`, { signal });
    const seats = api.get(`/chats/${id}/members`, { signal });
    let views;
    [room.chat, views, room.people, room.personas] = await Promise.all([chat, seats, characters.all(), personas.all()]);
    room.members = membersOf(views, room.people);
    chats.put(room.chat);
    title((heading.textContent = room.chat.title || t("chats.untitled")));
    room.events.dispatchEvent(new Event("chat"));
  };
  const latest = async () =>
    (await api.get(`/chats/${id}/turns`, { query: { limit: 1 }, signal })).items[0];
  let [turn] = await Promise.all([latest(), room.refresh(), path.reload()]);
  room.totals = turn?.totals;

  room.selection = messageSelection(room);
  const { element: reading, ...scrolling } = scroller(room);
  const { takeUp, ...taking } = turns(room);
  Object.assign(room, scrolling, taking);
  backdrop(room, reading);
  room.composer = composer(room);
  follow(room);
  const parts = [heading, header(room), reading, h("div", room.selection.element, greetings(room), stage(room), chronicleWatch(room), hints(room)), room.composer.element, voice];
  const talk = h("section.talk", parts);
  const aside = h("aside.panel", { hidden: true });
  const element = h("div.chat", talk, aside);

  let open = "";
  let leaving = new AbortController();
  const cover = () => (talk.inert = Boolean(open) && NARROW.matches);
  on(NARROW, "change", cover, signal);

  async function panel(name, options) {
    leaving.abort();
    leaving = new AbortController();
    const here = AbortSignal.any([signal, leaving.signal]);
    const before = open;
    open = name in PANELS ? name : "";
    aside.hidden = !open;
    cover();
    for (const each of talk.querySelectorAll("[data-panel]")) {
      each.ariaExpanded = String(each.dataset.panel === open);
      if (!open && each.dataset.panel === (before === "knows" ? "members" : before)) each.focus();
    }
    if (!open) return fill(aside);
    const close = () => room.open(null);
    const head = h("h2", { tabindex: -1 }, (aside.ariaLabel = t(`${open}.title`)));
    const body = h("div.body", t("common.loading"));
    fill(aside, h("header", head, act("close", t("common.close"), close, "quiet")), body);
    if (before !== open) head.focus({ preventScroll: true });
    const [, sheet, load] = PANELS[open];
    try {
      const [{ default: build }] = await Promise.all([load(), style(sheet)]);
      const content = await build(room, { options, signal: here, close });
      return here.aborted || fill(body, content);
    } catch (error) {
      if (!here.aborted) close();
      throw error;
    }
  }

  // Links within the chat do not leave the view.
  const settle = (search) => {
    const { panel: name, at, ...options } = Object.fromEntries(new URLSearchParams(search));
    // A panel next to the messages stays open.
    if (!at || NARROW.matches) attempt(() => panel(name, options));
    if (!at) return;
    attempt(() => room.show(Number(at) || 0, { mark: true }));
    // The same link can be used again.
    history.replaceState(null, "", place);
  };
  room.open = (name, options) => {
    if (name) location.hash = `${place}?${new URLSearchParams({ panel: name, ...options })}`;
    else settle(history.replaceState(null, "", place));
  };
  const moved = (event) => {
    event.preventDefault();
    settle(event.detail);
  };
  on(window, "moved", moved, signal);
  on(element, "keydown", (event) => {
    const selects = !room.selection.element.hidden && !aside.contains(event.target);
    if (event.key !== "Escape" || !open || selects || event.defaultPrevented) return;
    event.preventDefault();
    room.open(null);
  });
  // The first exchanges bring an automatic title.
  const retitle = () => path.total <= TITLED_WITHIN && room.refresh().catch(() => {});
  on(room.events, "turn", retitle, signal);
  // The list of chats shows the beginning of the last message.
  on(signal, "abort", chats.drop);
  keys(room);
  seating(room);
  settle(query);
  takeUp(turn);

  watch(room, async () => {
    const { id, state, kind } = (turn = (await latest()) ?? {});
    const isOpen = state === "running" || (state === "waiting" && id !== room.waiting?.id);
    // A draft for the user is shown where it was asked for.
    if (isOpen && kind !== "impersonate" && !room.busy) takeUp(turn);
  });
  requestAnimationFrame(() => !open && matchMedia("(hover: hover)").matches && room.composer.focus());
  return element;
}

function header(room) {
  const use = h("small.figure", { title: t("chat.use_help") });
  const save = async () => {
    await api.patch(`/chats/${room.chat.id}`, { title: name.value.trim() }, { keepalive: true });
    await room.refresh();
  };
  const onkeydown = (event) => {
    if (event.key === "Escape") name.value = room.chat.title;
    else if (event.key !== "Enter") return;
    event.preventDefault();
    name.blur();
  };
  const words = { placeholder: t("chats.untitled"), label: t("chat.name"), maxlength: 300 };
  const name = h("input.name", { ...words, onkeydown, onchange: () => attempt(save) });
  const draw = () => {
    if (document.activeElement !== name) name.value = room.chat.title;
    const { prompt: used, total } = room.totals ?? {};
    for (const each of buttons) each.hidden = each.dataset.panel === "world" && !room.chat.campaign_id;
    use.textContent = total ? t("chat.use", { used, total }) : "";
  };
  const button = ([panel, [sign]]) => {
    const label = t(`${panel}.title`);
    const toggle = ({ currentTarget: { ariaExpanded } }) => room.open(ariaExpanded !== "true" && panel);
    return set(act(sign, label, toggle, "quiet"), { "data-panel": panel, "aria-expanded": "false" });
  };
  const buttons = Object.entries(PANELS).filter(([, [sign]]) => sign).map(button);
  on(room.events, "chat", draw);
  draw();
  const back = h("a.quiet.button.back", { href: "#/", label: t("common.back") }, icon("left"));
  return h("header", back, cast(room), h("div.grow", name, h("div.facts", asked(room), use), costing(room)), buttons);
}
