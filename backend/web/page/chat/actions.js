/**
 * Actions on messages: toolbars, keyboard shortcuts, swipe gestures, and tools next to the
 * composer.
 */
import { act, api, attempt, commit, dialog, fill, h, menu, on, t, toast } from "../core.js";
import { share } from "./audience.js";
import { branch, choose, erase, fork, goOn, lead, remove, say, versions } from "./branches.js";
import { alone, isGroup } from "./cast.js";
import { described } from "./commands.js";
import { edit } from "./editing.js";

const isReply = ({ role }) => role === "assistant";
/** True if a message has no words of its own: who is there has changed, or a character passed. */
export const isQuiet = ({ presence, notices: all = [] }) =>
  Boolean(presence) || all.some(({ kind }) => kind === "passed");
/** A greeting comes from the card, so it cannot be regenerated. */
const isRemade = (message) => isReply(message) && message.position > 0;
const again = (room) => room.take({ regenerate_of: room.path.last().id });
const resume = (room) => room.take({ continue: true });

/**
 * Show another version of a message. After the last version of the last reply, a new one is
 * generated.
 */
async function swipe(message, room, step) {
  const { id, sibling, sibling_count: count } = message;
  const to = sibling + step;
  if (to > count && isRemade(message)) return again(room);
  const next = (await versions(id))[to - 1];
  if (!next) return;
  await lead(room, next.id);
  room.announce(say("version", { n: to, count }));
}
const swiping = (room, step) => alone(room, () => room.path.total && swipe(room.path.last(), room, step));

const entry = (room, name, sign, does, values) => ({
  label: say(name, values), icon: sign, danger: /^delete/.test(name), act: alone(room, does),
});

/** The button that turns the thoughts of a reply without text into its text. */
export function promotion({ id }, room) {
  const use = async () => room.path.put(await api.post(`/messages/${id}/thoughts-as-text`));
  return h("button", { onclick: alone(room, () => attempt(use)) }, say("use_thoughts"));
}

/** The actions for a last reply that was cut off. */
export const mending = (room) =>
  h("p.row.mending.last-only",
    act("continue", say("resume"), alone(room, () => resume(room))),
    act("again", t("common.retry"), alone(room, () => again(room))));

/** The toolbar below a message. The style sheet hides the parts for the last message elsewhere. */
export function toolbar(message, room) {
  const { id, position, sibling, sibling_count: count, hidden, text } = message;
  const isMark = isQuiet(message);
  const button = (name, sign, does, look = "") =>
    act(sign, say(name), alone(room, does), `quiet ${look}`);
  const hide = async () => room.path.put(await api.patch(`/messages/${id}`, { hidden: !hidden }));
  const more = ({ currentTarget }) => {
    const item = (...what) => entry(room, ...what);
    const among = (name, sign, one) => {
      const values = { count: one?.sibling_count };
      return values.count > 1 ? [item(name, sign, () => choose(one, room, say(name, values)), values)] : [];
    };
    const visibility = hidden ? "show" : "hide";
    const below = room.path.at(position + 1);
    const hasAudience = !isMark && (isGroup(room) || room.chat.campaign_id);
    const first = [
      // A model must not get a message without text.
      ...(text && !isMark ? [item(visibility, visibility, hide)] : []),
      ...(hasAudience ? [item("share", "whisper", () => share(message, room))] : []),
      ...among("versions", "memory", message),
    ];
    menu(currentTarget, [
      ...first,
      ...(first.length ? [null] : []),
      below
        ? item("branch", "branch", () => branch(message, room))
        : item("back", "down", () => goOn(message, room)),
      ...among("branches", "merge", below),
      item("fork", "copy", () => fork(message, room)),
      ...(isMark ? [] : [item("select", "check", () => room.selection.begin(message))]),
      null,
      ...(isMark ? [] : [item("delete_alone", "minus", () => erase([message], room))]),
      item("delete", "delete", () => remove(message, room)),
    ]);
  };
  const previous = button("previous", "left", () => swipe(message, room, -1));
  previous.disabled = sibling === 1;
  const next = button("next", "right", () => swipe(message, room, 1), sibling === count ? "last-only" : "");
  next.disabled = sibling === count && !isRemade(message);
  return h("div.tools", { role: "group", label: say("tools", { n: position + 1 }) },
    count > 1 && h("span.swipes", previous, h("span.figure", `${sibling} / ${count}`), next),
    isReply(message) && [
      button("again", "again", () => again(room), "last-only"),
      !isMark && button("continue", "continue", () => resume(room), "last-only"),
      isRemade(message) && act("layers", say("why"), () => room.open("context", { message: id }), "quiet"),
    ],
    !isMark && [
      button("edit", "edit", ({ target }) => edit(message, room, target.closest(".message"))),
      act("copy", t("common.copy"), () => copy(text), "quiet"),
    ],
    act("more", t("common.more"), more, "quiet"));
}

/** Copy a text, and report whether this worked. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("common.copied"));
  } catch {
    toast(say("no_copy"), { kind: "error" });
  }
}

const SWIPE = 60; // pixels of a swipe
const EDGE = 24; // pixels at the edges of the screen, where browsers have gestures of their own

/** Swipe the last message with a finger. Vertical moves scroll as usual, two fingers zoom. */
export function gestures(element, room) {
  let from = null;
  let by = 0;
  const end = () => {
    from = null;
    by = 0;
    element.style.translate = "";
  };
  element.onpointerdown = (event) => {
    const { pointerType, isPrimary, clientX } = event;
    if (pointerType !== "touch") return;
    const isInside = clientX > EDGE && clientX < innerWidth - EDGE;
    if (isPrimary && isInside && element.matches(".last:not(.edited)")) from = event;
    else end();
  };
  element.onpointermove = ({ clientX, clientY, pointerId }) => {
    if (pointerId !== from?.pointerId) return;
    by = clientX - from.clientX;
    // A long press selects text.
    const selects = !getSelection().isCollapsed;
    if (selects || Math.abs(clientY - from.clientY) > Math.max(12, Math.abs(by))) end();
    else element.style.translate = `${by / 3}px`;
  };
  element.onpointerup = () => {
    if (Math.abs(by) > SWIPE) swiping(room, -Math.sign(by))();
    end();
  };
  element.onpointercancel = end;
}

/** The keyboard shortcuts and commands, with what each one does. */
const help = () => dialog(say("keys"), () => {
  const rows = `${say("all_keys")}\n${described()}`.split("\n").map((each) => each.split("\t"));
  return h("dl.keys", rows.map(([key, does]) => [h("dt", key), h("dd", does)]));
});

/** Keyboard shortcuts of the chat. They do not apply while the user types. */
export function keys(room) {
  const editOwn = alone(room, () => {
    const own = [...document.querySelectorAll(".message.user")].at(-1);
    if (own) edit(room.path.at(own.position), room, own);
  });
  const both = { ArrowLeft: swiping(room, -1), ArrowRight: swiping(room, 1) };
  const composing = { ...both, ArrowUp: editOwn };
  const reading = { ...both, "/": () => room.open("find"), "?": help, m: () => room.switchModel() };
  const onkey = (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.defaultPrevented) return;
    if (target.closest("dialog, [role=menu], .panel")) return;
    if (key === "Escape") return room.busy && room.stop();
    const empty = target.matches(".desk textarea") && !room.composer.text;
    const does = empty ? composing[key] : !target.matches("input, textarea, select") && reading[key];
    if (!does) return;
    event.preventDefault();
    does();
  };
  on(window, "keydown", onkey, room.signal);
}

/**
 * The tools next to the composer: suggestions, impersonation, and a reply by a character.
 *
 * @returns {Array} The suggested lines, and the row of buttons.
 */
export function tools(room) {
  const { signal, events } = room;
  const chips = h("div.chips", { role: "group", label: say("suggest") });
  const clear = () => fill(chips);
  const chip = (line) => {
    const onclick = () => {
      room.composer.text = `${room.composer.text}\n\n${line}`.trim();
      clear();
      room.composer.focus();
    };
    return h("button.tag", { onclick }, line);
  };
  const show = (lines, dropped) =>
    fill(chips, lines.length > 0 && [
      lines.map(chip),
      dropped > 0 && h("small.soft", { role: "status" }, say("dropped", { count: dropped })),
      act("close", t("common.close"), clear, "quiet"),
    ]);
  let asking = new AbortController();
  const suggest = async () => {
    const waiting = h("span.soft", { role: "status" }, say("suggesting"));
    fill(chips, waiting);
    asking = new AbortController();
    const either = AbortSignal.any([signal, asking.signal]);
    const found = await attempt(async () => {
      // The model must not receive a message that the user has just deleted.
      await commit();
      return api.post(`/chats/${room.chat.id}/suggestions`, {}, { signal: either });
    });
    // Suggestions refer to the last message, so they are dropped once there is a newer one.
    if (!waiting.isConnected) return;
    show(found?.items ?? [], found?.dropped);
    if (!document.activeElement.matches("textarea")) chips.querySelector("button")?.focus();
  };
  on(events, "busy", () => {
    if (!room.busy) return;
    asking.abort();
    clear();
  });
  on(events, "played", ({ detail: { event, data } }) => event === "suggestions" && show(data.items));
  const more = ({ currentTarget }) =>
    menu(currentTarget, [
      ...room.members.filter(({ presence }) => presence !== "absent").map(({ id, name }) =>
        entry(room, "speaks", "chat", () => room.speak(id), { name })),
      null,
      { label: say("keys"), icon: "key", act: help },
    ]);
  const named = (name, sign, does) => act(sign, say(name), alone(room, does));
  const row = h("div.row.composing",
    named("suggest", "spark", suggest),
    named("mine", "edit", () => room.take({ impersonate: true })),
    act("more", t("common.more"), more, "quiet"));
  return [chips, row];
}
