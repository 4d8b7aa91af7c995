/** The choice among a character's greetings, before the first line of a chat. */
import { attempt, fill, h, on, t } from "../core.js";
import { lead, say, versions } from "./branches.js";

const SHOWN = 240; // characters of a greeting

/** A card for each greeting. Hidden once there is a line, or if there is only one greeting. */
export function greetings(room) {
  const { path, signal, events } = room;
  const cards = h("div.greetings", { role: "radiogroup", label: t("chat.greetings") });
  const element = h("div.beginning", { hidden: true }, h("small.soft", { "aria-hidden": "true" }, t("chat.greetings")), cards);
  let known = [];
  let reading = null;

  const greeting = () => {
    const first = path.total === 1 && path.at(0);
    return first?.role === "assistant" && first.sibling_count > 1 && !first.removed ? first : null;
  };
  const card = ({ id, text, shown }, at, { length: count }) => {
    const choose = async () => {
      await attempt(() => lead(room, id));
      room.show(0);
      room.announce(say("version", { n: at + 1, count }));
    };
    const words = (shown ?? text).replace(/[*_`#]/g, "").trim();
    const more = words.length > SHOWN ? "…" : "";
    const input = h("input.unseen", { type: "radio", name: "greeting", value: id, onchange: choose });
    return h("label.card", input, h("span", words.slice(0, SHOWN) + more));
  };
  const mark = () => {
    for (const input of cards.querySelectorAll("input")) {
      const is = input.value === greeting()?.id;
      if (is && !input.checked) input.parentNode.scrollIntoView({ block: "nearest", inline: "nearest" });
      input.checked = is;
    }
  };
  const read = async (id) => {
    const all = await versions(id);
    known = all.map((each) => each.id);
    fill(cards, all.filter(({ removed }) => !removed).map(card));
  };
  const draw = async () => {
    const first = greeting();
    element.hidden = !first || Boolean(room.busy);
    if (element.hidden) return;
    if (!known.includes(first.id) || known.length !== first.sibling_count) {
      await (reading ??= read(first.id).finally(() => (reading = null)));
    }
    mark();
  };
  const show = () => attempt(draw);
  on(path, "change", show, signal);
  on(events, "busy", show);
  show();
  return element;
}
