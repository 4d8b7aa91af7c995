/** The change log of a campaign: each change, its author and state, and undo. */
import { act, api, attempt, fill, h, icon, t, timed, toast } from "../core.js";
import { c, label } from "./parts.js";
import { said, whose } from "./said.js";
import { World } from "./world.js";

const SIGNS = { set: "=", add: "+", remove: "−" };

export default async function (it, { signal }) {
  const world = new World(it.id, signal);
  await world.read();
  const list = h("ol.ledger", { label: c("tabs.ledger") });
  const more = h("button", { onclick: () => attempt(() => load(more.value)) }, t("common.more"));
  const load = async (before) => {
    const { items, next } = await api.get(`${world.path}/changes`, { query: { before }, signal });
    if (!before) fill(list);
    list.append(...items.map((change) => line(change, world)));
    more.value = next ?? "";
    more.hidden = next == null;
  };
  await load();
  return h("section.stack", h("p.soft", c("ledger_help")), list, more);
}

/** A change as a line, which is drawn again after an undo. */
export function line(change, world) {
  const element = h("li");
  const undo = () => attempt(async () => {
    change = await world.undo(change.id);
    draw();
    element.focus();
  });
  const draw = () => {
    const { target, counts, undone, created_at: when } = change;
    const name = target.kind === "world" ? c("kinds.world") : target.name || c(`kinds.${target.kind}`);
    element.className = counts ? "" : "aside";
    fill(element,
      h("header.row",
        h("strong", name),
        target.kind !== "world" && h("span.soft", c(`kinds.${target.kind}`)),
        !counts && h("span.tag", c(undone ? "undone" : "elsewhere")),
        h("span.grow"),
        !undone && act("undo", c("undo", { name }), undo, "quiet")),
      h("ul.deltas", deltas(change, world)),
      change.because && h("p.soft", change.because),
      h("p.row.soft",
        h("span", whose(change.actor), " · ", timed(when)),
        change.message_id && source(change.message_id)));
  };
  element.tabIndex = -1;
  draw();
  return element;
}

/** A button that leads to the source message. */
export function source(id) {
  const go = () => attempt(async () => {
    const { chat_id: chat, position, is_active: isTold } = await api.get(`/messages/${id}`);
    if (isTold) location.hash = `#/chats/${chat}?at=${position}`;
    else toast(c("not_told"));
  });
  return h("button.value.soft", { onclick: go }, icon("chat"), c("message"));
}

/** The operations of a change, one line per field. Creation and deletion take one line. */
function deltas({ set: { exists, ...rest }, add, remove }, world) {
  const sign = (name) => h("b.sign", { role: "img", label: c(`signs.${name}`), class: name }, SIGNS[name]);
  const row = (name) => ([key, value]) =>
    h("li", sign(name), h("span.soft", `${label(key)} `), h("span", said(key, value, world)));
  if (exists === false) return h("li", sign("remove"), c("deleted"));
  const isBare = ([, value]) => exists && (value == null || value === "" || (typeof value === "object" && !Object.keys(value).length));
  return [
    exists && h("li", sign("add"), c("made")),
    Object.entries(rest).filter((each) => !isBare(each)).map(row("set")),
    Object.entries(add).map(row("add")),
    Object.entries(remove).map(row("remove")),
  ];
}
