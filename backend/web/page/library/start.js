/** Ways to start a chat: character cards, import, and the example. */
import { act, api, asset, attempt, characters, chats, h, icon, settled } from "../core.js";
import { importing } from "../core/importing.js";
import { foundBy } from "../lore/found.js";
import { movingButton } from "../transfer/moving.js";
import { face } from "./faces.js";
import { naming, say } from "./parts.js";

/** Create a chat, and open it. */
export async function play(character_ids, more) {
  const { id } = await api.post("/chats", { character_ids, ...more });
  chats.changed();
  location.hash = `#/chats/${id}`;
}

/** The button that opens a chat with a character. */
export function chatButton({ id, name }) {
  const button = act("chat", say("chat"), () => attempt(() => play([id])), "primary");
  button.ariaLabel = say("chat_with", { name });
  return button;
}

/** A character in the grid, with more elements beside its button. */
export const card = (item, ...more) =>
  h(
    "li",
    h(
      "a.poster",
      { href: `#/characters/${item.id}` },
      face(item),
      h("strong.clip", item.name),
    ),
    h("small.soft.clip", item.tags.slice(0, 4).join(" · ")),
    h("div.row.does", chatButton(item), more),
  );

const brought = async (character) =>
  character.extensions.regex_scripts?.length && (await import("./scripts.js")).broughtScripts(character);

/** The row of an imported character. */
export async function arrival(character, warnings, ...more) {
  const link = h("a", { href: `#/characters/${character.id}` }, character.name);
  const notes = warnings.map((each) => h("small", each));
  return { text: [link, notes, more, await brought(character)], sign: face(character), button: chatButton(character) };
}

/** Import of character cards. */
const cards = importing({
  accept: ".png,.apng,.charx,.byaf,.json,.yaml,.yml,image/png",
  async send(file, row) {
    const { character, lorebook, found_by, warnings } = await api.upload("/characters/import", file, row);
    tell();
    return arrival(character, warnings, lorebook && foundBy(lorebook, found_by));
  },
});
const tell = settled(characters.changed);

/** The button that imports cards. */
export const importButton = () => act("upload", say("import"), () => cards.choose());

const edit = ({ id }) => (location.hash = `#/characters/${id}`);
const make = () => naming(characters, say("new_character"), edit);

/** The button that creates a character. */
export const makeButton = (look) => act("plus", say("new_character"), make, look);

async function example() {
  const response = await fetch(asset("example-card.json"));
  const { character } = await api.upload("/characters/import", await response.blob());
  characters.changed();
  await play([character.id]);
}

/** The first steps for a user without characters. */
export const offer = () =>
  h(
    "div.empty.offer",
    icon("people"),
    h("h2", say("offer")),
    h("p", say("drop_help")),
    h(
      "div.row",
      act("spark", say("example"), () => attempt(example), "primary"),
      importButton(),
      makeButton(),
    ),
    h("small", say("example_help")),
    h("div.row", movingButton()),
  );
