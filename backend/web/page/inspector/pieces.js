/** The items of a prompt by group, with links to their sources. */
import { combine, h, icon, number, set, t } from "../core.js";
import { upper, why } from "./why.js";

/** The groups of a window in the order of a prompt, with their kinds of items. */
export const GROUPS = {
  rules: [
    ...["system_prompt", "authors_note", "post_history", "instruction", "joints"],
    ...["client_system", "client_note", "client_instruction"],
  ],
  who: ["persona", "public_part", "scenario", "speaker", "character", "examples", "depth_prompt"],
  world: ["campaign", "glossary", "chapters", "scenes", "entity", "state"],
  history: ["history", "user_line"],
  memory: [],
  lore: ["lore"],
  free: [],
  reserve: [],
};

/** The tabs of a campaign for items that are not in its world. */
const WORLDS = { campaign: "settings", glossary: "glossary" };

/** Sort a context into groups: `{ tokens, pieces }` by name. */
export function grouped({ totals, history, items, retrieved }) {
  const names = Object.keys(GROUPS);
  const groups = Object.fromEntries(names.map((name) => [name, { tokens: 0, pieces: [] }]));
  let rest = totals.prompt;
  const add = (piece) => {
    const group = groups[names.find((name) => GROUPS[name].includes(piece.kind)) ?? "memory"];
    group.pieces.push(piece);
    // An item in an outlet is counted with the item that contains the outlet.
    if (piece.place === "outlet") return;
    group.tokens += piece.tokens;
    rest -= piece.tokens;
  };
  if (history) {
    const title = t("context.messages", { first: history.first + 1, last: history.last + 1 });
    add({ ...history, kind: "history", title, tokens: totals.history });
  }
  [...items, ...retrieved].forEach(add);
  if (rest > 0) add({ kind: "joints", title: t("context.joints"), tokens: rest });
  groups.free.tokens = Math.max(0, totals.free);
  groups.reserve.tokens = totals.reply_reserve;
  return groups;
}

/** The address of an item's source. */
function source({ kind, title, reasons = [], source_id: id }, { chat, campaign }, holder) {
  const reason = reasons[0]?.kind;
  const said = kind === "summary" ? reasons[0]?.count : { history: title, memory: title }[kind]?.match(/\d+/)?.[0];
  if (said) return `${chat}?at=${said - 1}`;
  if (GROUPS.world.includes(kind)) return campaign && `${campaign}?tab=${WORLDS[kind] ?? "world"}`;
  if (holder && kind === "lore") return `#/lorebooks/${holder}?entry=${id}`;
  if (holder) return `#/chronicles/${holder}?event=${id}`;
  if (kind === "persona") return "#/personas";
  if (/^(card|public_part)$/.test(reason) && id) return `#/characters/${id}`;
  return reason?.includes("settings") && `${chat}?panel=settings`;
}

/** An expandable text. `opened` contains the keys of the open ones across redraws. */
export function unfolding(key, opened, summary, text) {
  const whole = h("div.text", { tabindex: 0 });
  const ontoggle = ({ target: { open } }) => {
    opened[open ? "add" : "delete"](key);
    whole.textContent = open ? text : "";
  };
  return h("details", { open: opened.has(key), ontoggle }, summary, whole);
}

/**
 * An item of a prompt: its title, reasons, text and a link to its source.
 * The panel's `containers` locate entries and events, `opened` remembers open texts, and `chat` and
 * `campaign` are addresses.
 */
export function piece(item, known) {
  const { containers, opened } = known;
  const title = upper(item.title);
  const key = `${item.kind} ${item.source_id ?? title}`;
  const href = source(item, known, containers[item.source_id]);
  const tokens = item.tokens > 0 && h("span.figure", number(item.tokens));
  const about = [
    h("span.row", h("strong.grow", title), tokens),
    h("small.soft", item.hidden ? stretch(item) : why(item.reasons ?? []),
      item.block && ` · ${t("context.block", { name: item.block })}`,
      item.images > 0 && ` · ${t("context.images", { count: item.images })}`),
  ];
  const body = item.text ? unfolding(key, opened, h("summary", about), item.text) : h("div", about);
  return h(
    "li.piece",
    set(body, { class: "fold" }),
    href && h("a.button.quiet", { href, label: t("context.source", { title }) }, icon("link")),
  );
}

/** Describe the history: its length, hidden and changed messages, and the omitted middle. */
function stretch({ count, hidden, changed, omitted_first: from, omitted_last: to }) {
  return combine([
    t("context.kept", { count }),
    hidden.length > 0 && t("context.hidden", { count: hidden.length }),
    changed.length > 0 && t("context.reworded", { count: changed.length }),
    from != null && t("context.omitted", { from: from + 1, to: to + 1 }),
  ], " ");
}
