/** What can be done with messages: under each, by key, by finger, and beside the composer. */
import { api } from "../core/api.js";
import { attempt, dialog, menu, toast } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { t } from "../core/words.js";
import { branch, choose, fork, goOn, lead, remove, versions } from "./branches.js";
import { edit } from "./editing.js";

const say = (name, values) => t(`message.${name}`, values);
const button = (label, sign, onclick, more) =>
  h("button.quiet", { type: "button", "aria-label": label, title: label, onclick, ...more }, icon(sign));

/** Do what must not happen while a reply is written. */
const alone = (room, act) => (room.busy ? toast(say("wait")) : attempt(act));
const isReply = (message) => message?.role === "assistant";
const again = (room) => alone(room, () => room.take({ regenerate_of: room.path.last().id }));

const further = (room) => alone(room, () => room.take({ continue: true }));

/** Go to another version of a message; behind those of the last reply a new one is made. */
const swipe = (message, room, step) =>
  alone(room, async () => {
    const { id, position, sibling, sibling_count: count } = message;
    const to = sibling + step;
    if (to > count && position && isReply(message) && position === room.path.total - 1) return again(room);
    const next = (await versions(id))[to - 1];
    if (!next) return;
    const { activeElement: pressed } = document;
    const place = pressed.closest(".tools")?.closest(".message");
    await lead(room, position, next.id);
    room.announce(say("version", { n: to, count }));
    // The message is drawn anew: whoever pressed a button goes on from the same one.
    setTimeout(() => {
      const same = place?.querySelector(`[aria-label="${pressed.ariaLabel}"]`);
      (same?.disabled ? place : same)?.focus();
    }, 50);
  });

const entry = (room, name, sign, act, values) => ({
  label: say(name, values), icon: sign, danger: name === "delete", act: () => alone(room, act),
});

/** What stands under a message. What is for the last one alone, the style sheet hides elsewhere. */
export function toolbar(message, room) {
  const { id, position, sibling, sibling_count: count, hidden } = message;
  const put = async () => room.path.put(await api.patch(`/messages/${id}`, { hidden: !hidden }));
  const more = ({ currentTarget }) => {
    const below = room.path.at(position + 1);
    const ways = { count: below?.sibling_count };
    const items = [
      hidden ? ["show", "show", put] : ["hide", "hide", put],
      count > 1 && ["versions", "memory", () => choose(message, room, say("versions", { count })), { count }],
      null,
      below ? ["branch", "branch", () => branch(message, room)] : ["back", "down", () => goOn(message, room)],
      ways.count > 1 && ["branches", "merge", () => choose(below, room, say("branches", ways)), ways],
      ["fork", "copy", () => fork(message, room)],
      null,
      ["delete", "delete", () => remove(message, room)],
    ];
    menu(currentTarget, items.filter((item) => item !== false).map((item) => item && entry(room, ...item)));
  };
  const atEnd = sibling === count && { class: "last-only", disabled: !(position && isReply(message)) };
  return h("div.tools", { role: "group", "aria-label": say("tools", { n: position + 1 }) },
    count > 1 && h("span.swipes", {},
      button(say("previous"), "left", () => swipe(message, room, -1), { disabled: sibling === 1 }),
      h("span.figure", {}, `${sibling} / ${count}`),
      button(say("next"), "right", () => swipe(message, room, 1), atEnd)),
    isReply(message) && [
      button(say("again"), "again", () => again(room), { class: "last-only" }),
      button(say("continue"), "continue", () => further(room), { class: "last-only" }),
      position > 0 && button(say("why"), "layers", () => room.open("context", { message: id })),
    ],
    button(t("common.edit"), "edit", (event) => {
      const place = event.target.closest(".message");
      alone(room, () => edit(message, room, place));
    }),
    button(t("common.copy"), "copy", () => copy(message.text)),
    button(t("common.more"), "more", more));
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("common.copied"));
  } catch {
    toast(say("no_copy"), { kind: "error" });
  }
}

/** Swiping the last message with a finger. Who scrolls, scrolls. */
export function gestures(element, message, room) {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let from = null;
  let by = 0;
  const end = () => {
    from = null;
    by = 0;
    element.style.translate = "";
  };
  element.onpointerdown = (event) => {
    if (event.pointerType === "touch" && element.matches(".last:not(.edited)")) from = event;
  };
  element.onpointermove = ({ clientX, clientY }) => {
    if (!from) return;
    by = clientX - from.clientX;
    if (Math.abs(clientY - from.clientY) > Math.max(12, Math.abs(by))) end();
    else if (!still.matches) element.style.translate = `${by / 3}px`;
  };
  element.onpointerup = () => {
    if (Math.abs(by) > 60) swipe(room.path.last(), room, -Math.sign(by));
    end();
  };
  element.onpointercancel = end;
}

const help = () => dialog(say("keys"), () => h("p.keys", {}, say("all_keys")));

/** Keys for the whole chat, where nothing is being typed. */
export function keys(room) {
  const turn = (step) => isReply(room.path.last()) && swipe(room.path.last(), room, step);
  const editOwn = () => {
    const own = [...document.querySelectorAll(".message.user")].at(-1);
    return own && alone(room, () => edit(room.path.at(own.position), room, own));
  };
  const both = { ArrowLeft: () => turn(-1), ArrowRight: () => turn(1) };
  const composing = { ...both, ArrowUp: editOwn };
  const reading = { ...both, "/": () => (room.open("find"), true), "?": help };
  const onkey = (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const elsewhere = target.closest("dialog, [role=menu]");
    if (key === "Escape") return room.busy && !elsewhere && !target.closest(".panel") && attempt(room.stop);
    const empty = target.matches(".desk textarea") && !room.composer.text;
    if (elsewhere || (!empty && target.matches("input, textarea, select"))) return;
    if ((empty ? composing : reading)[key]?.()) event.preventDefault();
  };
  addEventListener("keydown", onkey, { signal: room.signal });
}

/** What stands beside the composer: help with one's own line, and who speaks. */
export function tools(room) {
  const { signal } = room;
  const chips = h("div.chips", { role: "group", "aria-label": say("suggest") });
  const clear = () => fill(chips);
  const speak = (speaker) => {
    const { text } = room.composer;
    const ontaken = () => (room.composer.text = "");
    return room.take(text.trim() ? { text, speaker } : { speaker }, { ontaken });
  };
  const use = (line) => {
    room.composer.text = `${room.composer.text}\n\n${line}`.trim();
    clear();
    room.composer.focus();
  };
  const plain = (name, more, ...children) => h(name, { type: "button", ...more }, children);
  const suggest = async () => {
    bar.parentElement.prepend(chips);
    fill(chips, h("span.soft", { role: "status" }, say("suggesting")));
    const found = await attempt(() => api.post(`/chats/${room.chat.id}/suggestions`, {}, { signal }));
    const lines = found?.items.map((line) => plain("button.tag", { onclick: () => use(line) }, line));
    fill(chips, lines && [lines, button(t("common.close"), "close", clear)]);
    lines?.[0].focus();
  };
  const more = ({ currentTarget }) =>
    menu(currentTarget, [
      ...room.members.map(({ id, name }) => entry(room, "speaks", "chat", () => speak(id), { name })),
      null,
      entry(room, "keys", "key", help),
    ]);
  const named = (name, sign, act) =>
    plain("button.quiet", { onclick: () => alone(room, act) }, icon(sign), say(name));
  const bar = h("div.row.composing", {}, named("suggest", "spark", suggest),
    named("mine", "edit", () => room.take({ impersonate: true })), button(t("common.more"), "more", more));
  room.events.addEventListener("turn", clear, { signal });
  return bar;
}
