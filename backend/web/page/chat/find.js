/** Search in a chat: by words, by meaning, and by message number. */
import { attempt, fill, h, kept, on, searchMemory, settled, t } from "../core.js";
import { finding, passage } from "../core/passage.js";

const SHOWN = 240;

/** The search panel. It shows the last search again. */
export default async function (room, { signal, close }) {
  const { path } = room;
  const results = h("ol.passages");
  const state = h("p.soft", { role: "status" });
  const labelled = (name, more) => h("input", { label: t(`find.${name}`), ...more });
  const input = labelled("words", {
    type: "search", value: kept.get("find", ""),
    maxlength: 300, placeholder: t("find.words"), oninput: () => soon(),
  });
  const go = (position) => {
    if (matchMedia("(max-width: 68rem)").matches) close();
    room.show(position, { mark: true });
  };

  let latest;
  const look = async () => {
    const q = (latest = input.value.trim());
    fill(results);
    fill(state, q && t("find.looking"));
    kept.set("find", q);
    const query = { q, chat_id: room.chat.id, sources: "message", limit: 40 };
    const found = q && (await attempt(() => searchMemory(query, signal)));
    if (q !== latest) return;
    fill(state);
    if (!found) return;
    const { items, notes } = found;
    const words = finding(q);
    // Messages with the words come before messages with a similar meaning.
    items.sort((a, b) => words.test(b.text) - words.test(a.text));
    const count = t(items.length ? "find.count" : "find.nothing", { count: items.length });
    fill(state, [count, ...notes].join(" "));
    fill(results, items.map(({ title: author, text, position }) =>
      h("li", h("button", { onclick: () => go(position) },
        h("small.soft", t("find.at", { author, n: position + 1 })), passage(text, words, SHOWN)))));
  };
  const soon = settled(look, 400);

  const slider = labelled("place", {
    type: "range", min: 1,
    oninput: () => (number.value = slider.value), onchange: () => go(slider.value - 1),
  });
  const number = labelled("number", {
    type: "number", min: 1, required: true, oninput: () => (slider.value = number.value),
  });
  const measure = () => (slider.max = number.max = path.total);
  on(path, "change", measure, signal);
  measure();
  slider.value = number.value = path.total;

  look();
  setTimeout(() => input.select());
  const form = (what, does, ...children) =>
    h(what, { onsubmit: (event) => (event.preventDefault(), does()) }, children);
  return h("div.stack",
    form("form", () => (soon(), soon.now()), input),
    h("h3", t("find.jump")),
    slider,
    form("form.row", () => go(number.value - 1), h("div.grow", number), h("button", { type: "submit" }, t("find.go"))),
    state,
    results);
}
