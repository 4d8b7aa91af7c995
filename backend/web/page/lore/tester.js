/** Trying a book: which entries a text would bring in, why, and what they take. */
import { api } from "../core/api.js";
import { complain } from "../core/dialogs.js";
import { fill, h, settled } from "../core/dom.js";
import { control, progress } from "../core/form.js";
import { chats, kept } from "../core/store.js";
import { number, t } from "../core/words.js";
import { act } from "../library/parts.js";
import { place } from "./entry.js";

/** The tester of a book; `open(id)` shows an entry. `run()` looks again, after a change. */
export async function tester(id, open, signal) {
  const draft = kept.get(`lore.${id}`, {});
  const all = await chats.all();
  let seed;
  let last = 0;
  const text = control({ name: "text", kind: "area", rows: 4, most: 100_000, label: t("lore.text"), help: t("lore.text_help") });
  const chat = control({ name: "chat", kind: "select", label: t("lore.chat"), options: [["", t("lore.no_chat")], ...all.map((each) => [each.id, each.title || t("chats.untitled")])] });
  const bar = progress(t("lore.budget"));
  const head = h("h3.grow");
  const said = h("p.unseen", { role: "status" });
  const again = act("again", t("lore.again"), () => run((seed = Math.floor(Math.random() * 2 ** 53))), "quiet");
  const result = h("div.stack");

  const item = (entry) => {
    const why = [...(entry.reasons ?? [entry.reason]), entry.roll != null && t("lore.roll", { roll: entry.roll }), entry.position && place(entry)];
    const name = h("button.lore-link", { type: "button", onclick: () => open(entry.id) }, entry.title);
    return h("li", {}, h("div.grow", {}, name, h("small.soft", {}, why.filter(Boolean).join(" · "))), entry.tokens > 0 && h("span.figure", {}, t("common.tokens", { count: entry.tokens })));
  };
  const run = async () => {
    const mine = ++last;
    // A line of dashes parts messages.
    const texts = text.read().normalize("NFC").split(/^---+$/m).map((each) => each.trim());
    try {
      const found = await api.post(`/lorebooks/${id}/test`, { texts, chat_id: chat.read() || null, seed }, { signal });
      if (mine !== last) return;
      const { entries, left_out: missed, tokens, budget, more, notes } = found;
      bar.show(budget ? Math.min(1, tokens / budget) : 0, t("lore.of_budget", { tokens, budget: number(budget) }));
      said.textContent = head.textContent = t("lore.fires", { count: entries.length });
      again.hidden = ![...entries, ...missed].some((entry) => entry.roll != null);
      fill(
        result,
        entries.length > 0 && marked(texts, entries),
        h("ol.list", {}, entries.map(item)),
        missed.length > 0 && h("details.group", { open: true }, h("summary", {}, t("lore.nearly", { count: missed.length })), h("ul.list", {}, missed.map(item))),
        more > 0 && h("p.soft", {}, t("lore.and_more", { count: more })),
        notes.map((note) => h("p.soft", {}, note)),
      );
    } catch (error) {
      complain(error);
    }
  };
  const soon = settled(run, 350);
  text.write(draft.text);
  chat.write(all.some((each) => each.id === draft.chat) ? draft.chat : "");
  const oninput = () => {
    kept.set(`lore.${id}`, { text: text.read(), chat: chat.read() });
    soon();
  };
  run();
  const element = h("div.stack", { oninput }, text.element, chat.element, bar.element, said, h("div.row", {}, head, again), result);
  return { element, run: soon };
}

/** The texts, with what keys stand for marked. */
function marked(texts, entries) {
  const places = entries.flatMap(({ matches, title }) => matches.map((match) => ({ ...match, title })));
  places.sort((one, other) => one.start - other.start || other.end - one.end);
  const paragraph = (text, number) => {
    const characters = [...text];
    const cut = (from, to) => characters.slice(from, to).join("");
    const parts = [];
    let at = 0;
    for (const { start, end, title, message } of places) {
      if (message !== number || start < at) continue;
      parts.push(cut(at, start), h("mark", { title }, cut(start, end)));
      at = end;
    }
    return h("p", {}, parts, cut(at));
  };
  return h("div.card.prose.lore-marked", { "aria-label": t("lore.marked"), role: "group", tabindex: "0" }, texts.map(paragraph));
}
