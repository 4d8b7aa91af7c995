/** Search over everything: events, lore, messages. */
import { api } from "../core/api.js";
import { complain } from "../core/dialogs.js";
import { fill, h, icon, settled } from "../core/dom.js";
import { chronicles, lorebooks } from "../core/store.js";
import { date, t } from "../core/words.js";
import { areas, m, titles } from "./parts.js";

/** What can be found: its icon, and where it stands. */
const KINDS = {
  event: ["memory", (it) => `#/chronicles/${it.container_id}?event=${it.source_id}`],
  lore: ["book", (it) => `#/lorebooks/${it.container_id}?entry=${it.source_id}`],
  message: ["chat", (it) => `#/chats/${it.container_id}?at=${it.position}`],
};
const SHOWN = 420;

export default async function search({ query, signal, title }) {
  title(m("search"));
  const field = h("input", {
    type: "search",
    name: "q",
    value: query.get("q"),
    "aria-label": m("ask"),
    placeholder: m("ask"),
    maxlength: 2000,
  });
  const wanted = new Set((query.get("sources") || Object.keys(KINDS).join()).split(","));
  const out = h("div", { "aria-live": "polite" });
  let asking = new AbortController();
  let limit;

  const ask = async () => {
    asking.abort();
    asking = new AbortController();
    const ending = AbortSignal.any([signal, asking.signal]);
    const q = field.value.trim();
    const sources = [...wanted].join();
    history.replaceState(null, "", `#/memory?${new URLSearchParams({ q, sources })}`);
    if (!q) return fill(out, h("p.empty", {}, m("start")));
    try {
      const [found, chats, ...lists] = await Promise.all([
        api.get("/search", { query: { q, sources, limit }, signal: ending }),
        titles(),
        chronicles.all(),
        lorebooks.all(),
      ]);
      const names = new Map([...chats, ...lists.flat().map((each) => [each.id, each.name])]);
      if (!ending.aborted) show(found, pattern(q), names);
    } catch (error) {
      complain(error);
    }
  };

  const show = ({ items, notes }, find, names) => {
    const most = { score: 1 };
    for (const [name, value] of items.flatMap((it) => Object.entries(it.signals))) {
      most[name] = Math.max(most[name] ?? 0, value);
    }
    fill(out,
      notes.map((note) => h("p.soft.row", {}, icon("alert"), note)),
      items.length ? null : h("p.empty", {}, m("nothing")),
      h("ol.results", { "aria-label": m("matches") }, items.map((it) => result(it, find, names, most))),
      items.length === limit && limit < 100 && h("button", { onclick: deeper }, t("common.more")));
  };

  const start = () => ((limit = 20), ask());
  const deeper = () => ((limit += 20), ask());
  const soon = settled(start);
  signal.addEventListener("abort", soon.drop);
  field.addEventListener("input", () => soon());
  const toggle = (name) => {
    const button = h("button.tag", { type: "button", onclick }, m(`places.${name}`));
    const press = () => button.setAttribute("aria-pressed", String(wanted.has(name)));
    function onclick() {
      if (!wanted.delete(name)) wanted.add(name);
      press();
      start();
    }
    press();
    return button;
  };
  start();
  return h("div.page", {},
    h("header", {}, h("h1", {}, m("memory"))),
    areas("search"),
    h("form.stack.asking", { role: "search", onsubmit: (event) => (event.preventDefault(), soon.now()) },
      h("div.big", {}, icon("search"), field),
      h("div.row", { role: "group", "aria-label": m("sources") }, Object.keys(KINDS).map(toggle))),
    out);
}

function result(it, find, names, most) {
  const [sign, at] = KINDS[it.kind];
  const home = names.get(it.container_id) ?? "";
  return h("li", {},
    h("article", {},
      h("h2.row", {}, icon(sign), h("a.plain", { href: at(it) }, it.title || home)),
      h("p.soft", {}, m(`found.${it.kind}`, { home }), it.said_at && `, ${date(it.said_at)}`),
      h("p.prose", {}, marked(it.text, find))),
    h("dl.signals", {}, Object.entries({ score: it.score, ...it.signals }).map(([name, value]) =>
      h("div", { title: m(`why.${name}`), vars: { share: Math.min(1, value / most[name] || 0) } },
        h("dt", {}, m(`signal.${name}`)), h("dd", {}, value.toFixed(2))))));
}

/** What finds the words of a query in a text, whatever their endings. */
function pattern(q) {
  const skip = m("skip").split(" ");
  const words = (q.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []).filter((each) => !skip.includes(each));
  const stems = words.map((each) => (each.length > 4 ? each.replace(/(ing|ed|es|s|e)$/, "") : each));
  // Where nothing is left, nothing is marked.
  return new RegExp(stems.length ? `(?<![\\p{L}\\p{N}])(${stems.join("|")})[\\p{L}\\p{N}]*` : "$.", "giu");
}

/** The part of a text around the first of the words, with all of them marked. */
function marked(whole, find) {
  const start = whole.length > SHOWN ? Math.max(0, whole.lastIndexOf(" ", whole.search(find) - 90)) : 0;
  const text = whole.slice(start, start + SHOWN);
  const parts = [start ? "…" : ""];
  let at = 0;
  for (const { 0: hit, index } of text.matchAll(find)) {
    parts.push(text.slice(at, index), h("mark", {}, hit));
    at = index + hit.length;
  }
  return [parts, text.slice(at), start + SHOWN < whole.length && "…"];
}
