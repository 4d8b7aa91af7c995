/** Finding a place in a chat: by words, by meaning, by number. */
import { api } from "../core/api.js";
import { attempt } from "../core/dialogs.js";
import { fill, h, settled } from "../core/dom.js";
import { kept } from "../core/store.js";
import { t } from "../core/words.js";

/** What of a text is shown: where it has one of the words, with all of them marked. */
function passage(text, words) {
  const from = Math.max(0, text.search(words) - 80);
  const parts = text.slice(from, from + 240).split(words);
  const marked = parts.map((each, at) => (at % 2 ? h("mark", {}, each) : each));
  return [from > 0 && "…", marked, text.length > from + 240 && "…"];
}

/** The panel. What was looked for last stands in it again. */
export default async function (room, { signal, close }) {
  const { path } = room;
  const before = kept.get("find", "");
  const results = h("ol.passages");
  const state = h("p.soft", { role: "status" });
  const labelled = (name, more) => h("input", { "aria-label": t(`find.${name}`), ...more });
  const input = labelled("words", {
    type: "search", value: before, maxlength: 300, placeholder: t("find.words"), oninput: () => soon(),
  });
  const go = (position) => {
    if (matchMedia("(max-width: 68rem)").matches) close();
    attempt(() => room.show(position, { mark: true }));
  };

  let latest;
  const look = () =>
    attempt(async () => {
      const q = (latest = input.value.trim());
      fill(results);
      state.textContent = q && t("find.looking");
      kept.set("find", q);
      if (!q) return;
      const query = { q, chat_id: room.chat.id, sources: "message", limit: 40 };
      const asked = api.get("/search", { query, signal });
      const { items, notes } = await asked.finally(() => (state.textContent = ""));
      if (q !== latest) return;
      const parts = q.match(/[\p{L}\p{N}]{3,}/gu) ?? [q.replace(/\P{L}/gu, ".")];
      const words = RegExp(`(${parts.join("|")})`, "iu");
      // Who has more of the words comes first; the others are like them in meaning.
      const had = ({ text }) => parts.filter((each) => RegExp(each, "iu").test(text)).length;
      items.sort((a, b) => had(b) - had(a));
      const count = t(items.length ? "find.count" : "find.nothing", { count: items.length });
      state.textContent = [count, ...notes].join(" ");
      fill(results, items.map(({ title: author, text, position }) =>
        h("li", {}, h("button", { onclick: () => go(position) },
          h("small.soft", {}, t("find.at", { author, n: position + 1 })), passage(text, words)))));
    });
  const soon = settled(look, 400);

  const slider = labelled("place", { type: "range", min: 1, oninput: () => (number.value = slider.value),
    onchange: () => go(slider.value - 1) });
  const number = labelled("number", { type: "number", min: 1, required: true });
  const measure = () => (slider.max = number.max = path.total);
  const jump = (position) => ((slider.value = number.value = position + 1), go(position));
  path.addEventListener("change", measure, { signal });
  measure();
  slider.value = number.value = path.total;

  if (before) look();
  setTimeout(() => input.select(), 50);
  const form = (what, act, ...children) =>
    h(what, { onsubmit: (event) => (event.preventDefault(), act()) }, children);
  const button = (name, position) =>
    h("button", { type: "button", onclick: () => jump(position()) }, t(`find.${name}`));
  return h("div.stack", {},
    form("form", () => (soon(), soon.now()), input),
    h("h3", {}, t("find.jump")),
    slider,
    form("form.row", () => jump(number.value - 1), button("first", () => 0), h("div.grow", {}, number),
      h("button", {}, t("find.go")), button("last", () => path.total - 1)),
    state,
    results);
}
