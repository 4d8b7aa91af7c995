/** Search over everything: events, lore, messages. */
import { api } from "../core/api.js";
import { complain } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { finding, passage } from "../core/passage.js";
import { chronicles, lorebooks } from "../core/store.js";
import { date, t } from "../core/words.js";
import { areas, m, sieve, titles } from "./parts.js";

/** What can be found: its icon, and where it stands. */
const KINDS = {
  event: ["memory", (it) => `#/chronicles/${it.container_id}?event=${it.source_id}`],
  lore: ["book", (it) => `#/lorebooks/${it.container_id}?entry=${it.source_id}`],
  message: ["chat", (it) => `#/chats/${it.container_id}?at=${it.position}`],
};
const PAGE = 20;
const MOST = 100;
const SHOWN = 420;

export default async function search({ query, signal, title }) {
  title(m("search"));
  const out = h("div", { "aria-live": "polite" });
  let asking = new AbortController();

  const ask = async (limit = PAGE) => {
    asking.abort();
    asking = new AbortController();
    const ending = AbortSignal.any([signal, asking.signal]);
    const wanted = form.wanted();
    if (!wanted.q) return fill(out, h("p.empty", {}, m("start")));
    try {
      const [{ items, notes }, chats, ...lists] = await Promise.all([
        api.get("/search", { query: { ...wanted, limit }, signal: ending }),
        titles(),
        chronicles.all(),
        lorebooks.all(),
      ]);
      if (ending.aborted) return;
      const names = new Map([...chats, ...lists.flat().map((each) => [each.id, each.name])]);
      const find = finding(wanted.q);
      const most = { score: 1 };
      for (const [name, value] of items.flatMap((it) => Object.entries(it.signals))) {
        most[name] = Math.max(most[name] ?? 0, value);
      }
      fill(out,
        notes.map((note) => h("p.soft.row", {}, icon("alert"), note)),
        items.length
          ? h("ol.results", { "aria-label": m("matches") }, items.map((it) => result(it, find, names, most)))
          : h("p.empty", {}, m("nothing")),
        items.length === limit && limit < MOST &&
          h("button", { onclick: () => ask(limit + PAGE) }, t("common.more")));
    } catch (error) {
      complain(error);
    }
  };

  const form = sieve("/memory", query, signal, {
    q: m("ask"),
    sources: [["", m("everything")], ...Object.keys(KINDS).map((kind) => [kind, m(`places.${kind}`)])],
  }, ask);
  form.element.classList.add("big");
  ask();
  return h("div.page", {}, h("header", {}, h("h1", {}, m("memory"))), areas("search"), form.element, out);
}

function result(it, find, names, most) {
  const [sign, at] = KINDS[it.kind];
  const home = names.get(it.container_id) ?? "";
  return h("li", {},
    h("article", {},
      h("h2.row", {}, icon(sign), h("a.plain", { href: at(it) }, it.title || home)),
      h("p.soft", {}, m(`found.${it.kind}`, { home }), it.said_at && `, ${date(it.said_at)}`),
      h("p.prose", {}, passage(it.text, find, SHOWN))),
    h("dl.signals", {}, Object.entries({ score: it.score, ...it.signals }).map(([name, value]) =>
      h("div", { title: m(`why.${name}`), vars: { share: Math.min(1, value / most[name] || 0) } },
        h("dt", {}, m(`signal.${name}`)), h("dd", {}, value.toFixed(2))))));
}
