/** Ways into a chat: cards of characters, importing, the example. */
import { api } from "../core/api.js";
import { attempt } from "../core/dialogs.js";
import { act, h, icon, settled } from "../core/dom.js";
import { importing } from "../core/importing.js";
import { characters, chats } from "../core/store.js";
import { t } from "../core/words.js";
import { face } from "./faces.js";
import { naming } from "./parts.js";

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
    h(
      "a.poster",
      { href: `#/characters/${item.id}` },
      face(item),
      h("strong.clip", { dir: "auto" }, item.name),
    ),
    h("small.soft.clip", {}, item.tags.slice(0, 4).join(" · ")),
    chatButton(item),
  );

/** Cards that come in. */
export const cards = importing({
  accept: ".png,.apng,.charx,.json,.yaml,.yml,image/png",
  drop: t("library.drop"),
  async send(file, options) {
    const { character, warnings } = await api.upload("/characters/import", file, options);
    tell();
    const link = h("a", { href: `#/characters/${character.id}` }, character.name);
    return [[link, warnings.map((each) => h("small", {}, each))], face(character), chatButton(character)];
  },
});
const tell = settled(() => characters.changed());

/** The button that imports cards. */
export const importButton = () => act("upload", t("library.import"), () => cards.choose());

const edit = ({ id }) => (location.hash = `#/characters/${id}`);
const make = () => naming(characters, t("library.new_character"), edit);

/** The button that makes a character. */
export const makeButton = (look) => act("plus", t("library.new_character"), make, look);

const example = () =>
  attempt(async () => {
    const response = await fetch(new URL("../example-card.json", import.meta.url));
    const file = new File([await response.blob()], "example.json");
    const { character } = await api.upload("/characters/import", file);
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
      makeButton(),
    ),
    h("small", {}, t("library.example_help")),
  );
