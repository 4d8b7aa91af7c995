/** Test a lorebook: the entries that a text activates, the reasons, and their tokens. */
import { act, api, attempt, combine, control, fill, h, kept, progress, settled, t } from "../core.js";
import { why } from "../inspector/why.js";
import { titles } from "../memory/parts.js";
import { place } from "./entry.js";

/** The tester of a book. `open(id)` shows an entry. `run()` tests again after a change. */
export async function tester(id, open, signal) {
  const draft = kept.get(`lore.${id}`, {});
  const chats = await titles();
  let seed;
  let last = 0;
  const help = t("lore.text_help");
  const text = control({ kind: "area", rows: 4, most: 100_000, label: t("lore.text"), help });
  const options = [["", t("lore.no_chat")], ...chats];
  const chat = control({ kind: "select", label: t("lore.chat"), options });
  const bar = progress(t("lore.budget"));
  const head = h("h3.grow");
  const draw = () => run((seed = Math.floor(Math.random() * 2 ** 53)));
  const again = act("again", t("lore.again"), draw, "quiet");
  again.hidden = true;
  const result = h("div.stack");

  const item = (entry) => {
    const about = [
      why(entry.reasons),
      entry.roll != null && t("lore.roll", entry),
      entry.position && place(entry),
    ];
    const name = h("button.lore-link", { onclick: () => open(entry.id) }, entry.title);
    return h(
      "li",
      h("div.grow", name, h("small.soft", combine(about))),
      entry.tokens > 0 && h("span.figure", t("common.tokens", { count: entry.tokens })),
    );
  };
  const show = ({ entries, left_out: missed, tokens, budget, more, notes }, texts) => {
    bar.show(budget && tokens / budget, t("lore.of_budget", { tokens, budget }));
    head.textContent = t("lore.fires", { count: entries.length });
    again.hidden = ![...entries, ...missed].some((entry) => entry.roll != null);
    const nearly = h("summary", t("lore.nearly", { count: missed.length }));
    fill(
      result,
      entries.length > 0 && marked(texts, entries),
      h("ol.list", entries.map(item)),
      missed.length > 0 && h("details.group", { open: true }, nearly, h("ul.list", missed.map(item))),
      more > 0 && h("p.soft", t("lore.and_more", { count: more })),
      notes.map((note) => h("p.soft", note)),
    );
  };
  const run = () => attempt(async () => {
    const mine = ++last;
    // A line of dashes separates messages.
    const texts = text.read().normalize("NFC").split(/^---+$/m).map((each) => each.trim());
    const wish = { texts, chat_id: chat.read() || null, seed };
    const found = await api.post(`/lorebooks/${id}/test`, wish, { signal });
    if (mine === last) show(found, texts);
  });
  const soon = settled(run, 350, signal);
  text.write(draft.text);
  chat.write(chats.has(draft.chat) ? draft.chat : "");
  const oninput = () => {
    kept.set(`lore.${id}`, { text: text.read(), chat: chat.read() });
    soon();
  };
  run();
  const found = h("div.row", { role: "status" }, head, again);
  const element = h("div.stack", { oninput }, text.element, chat.element, bar.element, found, result);
  return { element, run: soon };
}

/** The texts with the matched keys highlighted. */
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
    return h("p", parts, cut(at));
  };
  const attributes = { label: t("lore.marked"), role: "group", tabindex: "0" };
  return h("div.card.prose.lore-marked", attributes, texts.map(paragraph));
}
