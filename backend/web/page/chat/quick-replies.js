/** Quick replies above the composer: texts of the account, the chat and its characters. */
import { api, fill, h, on, t } from "../core.js";

const SHOWN = 40; // characters of a text without a label

/** The quick replies of a card. */
const ofCard = ({ extensions }) => {
  const found = extensions.talekeeper?.quick_replies;
  return Array.isArray(found) ? found : [];
};

/** Move the focus within a row of buttons, of which Tab reaches one. */
function arrows(row) {
  const buttons = () => [...row.querySelectorAll("button")];
  const reach = (button) => buttons().forEach((each) => (each.tabIndex = each === button ? 0 : -1));
  on(row, "focusin", ({ target }) => reach(target));
  on(row, "keydown", (event) => {
    const all = buttons();
    const at = all.indexOf(event.target);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    all.at(to % all.length).focus();
  });
  return () => reach(buttons()[0]);
}

/** The row of a room's quick replies. `use(text)` gets the text of the chosen one. */
export function quickReplies(room, use) {
  const { events, signal } = room;
  const row = h("div.quick", { role: "toolbar", label: t("replies.title"), hidden: true });
  const begin = arrows(row);
  const cards = new Map();
  let account = [];

  const button = ({ label, text }) => {
    const words = label || (text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text);
    return h("button.tag", { title: text, onclick: () => use(text) }, words);
  };
  const draw = () => {
    const those = room.members.flatMap(({ id }) => cards.get(id) ?? []);
    const all = [account, room.settings?.quick_replies ?? [], those].flat().filter(({ text }) => text?.trim());
    // Replies of one set are next to each other.
    const sets = Map.groupBy(all, ({ set }) => set ?? "");
    row.hidden = !all.length;
    fill(row, [...sets].map(([name, items]) => [name && h("small.soft", name), items.map(button)]));
    if (all.length) begin();
  };
  // The chat works without quick replies, so errors are ignored.
  const readCards = async () => {
    const unread = room.members.filter(({ id }) => !cards.has(id));
    for (const { id } of unread) cards.set(id, []);
    await Promise.all(unread.map(async ({ id }) =>
      cards.set(id, ofCard(await api.get(`/characters/${id}`, { signal })))));
    draw();
  };
  const read = async () => {
    account = (await api.get("/me/settings", { signal })).quick_replies ?? [];
    draw();
  };
  on(events, "chat", () => readCards().catch(() => {}));
  on(events, "asked", draw);
  read().catch(() => {});
  readCards().catch(() => {});
  return row;
}
