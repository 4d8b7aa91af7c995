/** Ways into a chat: cards of characters, importing, the example. */
import { api, Problem, problemOf } from "../core/api.js";
import { attempt, explain } from "../core/dialogs.js";
import { h, icon, settled } from "../core/dom.js";
import { progress } from "../core/form.js";
import { characters, chats, session } from "../core/store.js";
import { t } from "../core/words.js";
import { face } from "./faces.js";
import { act, dropping, pick, refill } from "./parts.js";

const CARDS = ".png,.apng,.charx,.json,.yaml,.yml,image/png";
const LARGEST = 20 * 1024 * 1024;
const AT_ONCE = 3;

/** Open a chat, and go there. */
export const play = (character_ids, more) =>
  attempt(async () => {
    const chat = await api.post("/chats", { character_ids, ...more });
    chats.changed();
    location.hash = `#/chats/${chat.id}`;
    return chat;
  });

const once = (does) => async ({ currentTarget: button }) => {
  button.disabled = true;
  await does();
  button.disabled = false;
};

/** The button that opens a chat with a character. */
export function chatButton({ id, name }) {
  const button = act("chat", t("library.chat"), once(() => play([id])), "primary");
  button.ariaLabel = t("library.chat_with", { name });
  return button;
}

/** A character in the grid. */
export const card = (item) =>
  h(
    "li",
    {},
    h("a.poster", { href: `#/characters/${item.id}` }, face(item), h("strong.clip", {}, item.name)),
    h("small.soft.clip", {}, item.tags.slice(0, 4).join(" · ")),
    h("small.soft.clip", {}, item.creator && t("library.by", { name: item.creator })),
    chatButton(item),
  );

const waiting = [];
let running = 0;
let owner;
const rows = h("ul.list");
const state = h("p.grow", { role: "status" });
const clear = act("check", t("library.clear"), () => tidy("busy"));
const box = h("section.card.imports", { "aria-label": t("library.imports") }, h("div.row", {}, state, clear), rows);
const tell = settled(() => characters.changed());

function tidy(but) {
  for (const row of [...rows.children]) if (row.className !== but) row.remove();
  count();
}

function count() {
  const [busy, done, refused] = ["busy", "done", "refused"].map((each) => rows.getElementsByClassName(each).length);
  const total = rows.children.length;
  box.hidden = !total;
  clear.hidden = total === busy;
  state.textContent = t(refused ? "library.imported_but" : "library.imported", { done, total, refused });
}

async function next() {
  if (running === AT_ONCE || !waiting.length) return;
  running += 1;
  await waiting.shift()();
  running -= 1;
  next();
}

function take(files) {
  for (const file of files) add(file);
}

function add(file) {
  const { name } = file;
  const row = h("li");
  const show = (as, sign, text, button) => {
    row.className = as;
    refill(row, sign, h("div.grow", {}, text), button);
    count();
  };
  const failed = (as, text) => {
    const title = h("p.clip", {}, name);
    show(as, icon("alert"), [title, h("small", {}, text)], act("again", t("library.retry", { name }), start, "quiet"));
  };
  const start = () => {
    const leaving = new AbortController();
    const { signal } = leaving;
    const bar = progress(t("library.importing", { name }));
    const cancel = () => {
      leaving.abort();
      failed("stopped", t("library.cancelled"));
    };
    const onprogress = (share) => (share < 1 ? bar.show(share) : bar.show(null, t("library.reading")));
    bar.show(0, t("library.waiting"));
    const end = act("close", t("library.cancel", { name }), cancel, "quiet");
    show("busy", icon("upload"), [h("p.clip", {}, name), bar.element], end);
    waiting.push(async () => {
      if (signal.aborted) return;
      try {
        if (file.size > LARGEST) throw new Problem({ title: t("library.too_large") });
        const { character, warnings } = await api.upload("/characters/import", file, { signal, onprogress });
        const link = h("a", { href: `#/characters/${character.id}` }, character.name);
        show("done", face(character), [link, warnings.map((each) => h("small", {}, each))], chatButton(character));
        tell();
      } catch (error) {
        if (signal.aborted) return;
        failed("refused", explain(error));
        rows.prepend(row);
      }
    });
    next();
  };
  rows.append(row);
  start();
}

/** The button that imports cards. */
export const importButton = () => act("upload", t("library.import"), () => pick(CARDS, take, true));

/**
 * Let a view take cards that are dropped on it or pasted. The element tells what becomes of each file;
 * importing goes on when the view is left.
 */
export function imports(view, signal) {
  if (owner !== session.user.id) tidy();
  owner = session.user.id;
  view.dataset.drop = t("library.drop");
  dropping(window, view, take, signal);
  addEventListener("paste", ({ clipboardData }) => take(clipboardData.files), { signal });
  count();
  return box;
}

const example = () =>
  attempt(async () => {
    const response = await fetch(new URL("../example-card.json", import.meta.url));
    if (!response.ok) throw await problemOf(response);
    const { character } = await api.upload("/characters/import", new File([await response.blob()], "example.json"));
    characters.changed();
    await play([character.id]);
  });

/** What is offered to whoever has no character yet. */
export const offer = () =>
  h(
    "div.empty.offer",
    {},
    icon("people"),
    h("h2", {}, t("library.offer")),
    h("p", {}, t("library.drop_help")),
    h(
      "div.row",
      {},
      act("spark", t("library.example"), once(example), "primary"),
      importButton(),
      h("a.button", { href: "#/characters/new" }, icon("plus"), t("library.make_one")),
    ),
    h("small", {}, t("library.example_help")),
  );
