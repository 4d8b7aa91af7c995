/** Search over campaigns, events, lore, and messages. */
import {
  attempt, chronicles, date, fill, h, icon, lorebooks, searchMemory, t, texts,
} from "../core.js";
import { finding, passage } from "../core/passage.js";
import { signal, upper, why } from "../inspector/why.js";
import { areas, m, sieve, signals, titles } from "./parts.js";

/** The kinds of results: icon, list of the container, and name in addresses. */
const KINDS = {
  campaign: ["book", "campaigns", "item"],
  event: ["memory", "chronicles", "event"],
  lore: ["book", "lorebooks", "entry"],
  message: ["chat", "chats", "at"],
};
const PAGE = 20;
const MOST = 100;
const SHOWN = 420;

export default async function search({ query, signal, title }) {
  title(m("search"));
  const out = h("div", { "aria-live": "polite" });
  const next = signals(signal);

  const ask = (limit = PAGE) => attempt(async () => {
    const ending = next();
    const wanted = form.wanted();
    if (!wanted.q) return fill(out, h("p.empty", m("start")));
    const [{ items, notes, near_misses: close }, chats, ...lists] = await Promise.all([
      searchMemory({ ...wanted, limit, near_misses: true }, ending),
      titles(),
      chronicles.all(),
      lorebooks.all(),
    ]);
    if (ending.aborted) return;
    const names = new Map([...chats, ...lists.flat().map((each) => [each.id, each.name])]);
    const find = finding(wanted.q);
    fill(out,
      notes.map((note) => h("p.soft.row", icon("alert"), note)),
      items.length
        ? h("ol.results", { label: m("matches") }, items.map((it) => result(it, find, names)))
        : h("p.empty", m("nothing")),
      close.length > 0 && h("details.group", h("summary", m("close")),
        h("ul.results", close.map((it) => result(it, find, names)))),
      items.length === limit && limit < MOST &&
        h("button", { onclick: () => ask(limit + PAGE) }, t("common.more")));
  });

  const form = sieve("/memory", query, signal, {
    q: m("ask"),
    sources: [["", m("everything")], ...Object.entries(texts.memory.places)],
  }, ask);
  form.element.classList.add("big");
  ask();
  return h("div.page", h("header", h("h1", m("memory"))), areas("search"), form.element, out);
}

function result(it, find, names) {
  const [sign, place, key] = KINDS[it.kind];
  const href = `#/${place}/${it.container_id}?${key}=${it.position ?? it.source_id}`;
  const home = names.get(it.container_id) ?? "";
  // Title and text may begin with the same name.
  const text = it.title && it.text.startsWith(`${it.title}:`) ? it.text.slice(it.title.length + 1).trim() : it.text;
  const reasons = it.signals?.map(signal) ?? [why([it.why])];
  return h("li",
    h("article",
      h("h2.row", icon(sign), h("a.plain", { href }, it.title || home)),
      h("p.soft", m(`found.${it.kind}`, { home }), it.story_time ? `, ${it.story_time}` : it.said_at && `, ${date(it.said_at)}`),
      h("p.prose", passage(text, find, SHOWN))),
    h("ul.signals", { label: m("why") }, reasons.map((each) => h("li", upper(each)))));
}
