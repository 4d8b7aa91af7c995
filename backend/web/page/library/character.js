/** A character: its card, picture, lorebooks, and chats. */
import {
  act, ago, api, attempt, characters, control, deleting, fill, h, icon, labels, lorebooks, menu, more, on,
  t, undoable,
} from "../core.js";
import { backgroundOf } from "../chat/background.js";
import { at, NOTE, patchOf } from "../chat/fields.js";
import { replyEditor } from "../chat/reply-editor.js";
import { duplicate, exports, star } from "./acts.js";
import { change, NAME, editing, portrait, say } from "./parts.js";
import { cardScripts } from "./scripts.js";
import { files } from "../transfer/files.js";
import { chatButton } from "./start.js";

/** Fields, grouped by how often they are used. */
const GROUPS = {
  "": "name description personality scenario first_mes",
  greetings: "alternate_greetings group_only_greetings",
  instructions: "mes_example system_prompt post_history_instructions",
  about: "tags nickname creator character_version creator_notes",
};
/** Fields that are in every prompt. */
const ALWAYS = `description personality scenario ${GROUPS.instructions}`.split(" ");
const KINDS = {
  name: NAME,
  nickname: {},
  creator: {},
  character_version: {},
  tags: { kind: "words", wide: true },
  alternate_greetings: { control: texts },
  group_only_greetings: { control: texts },
};
const AREA = { kind: "area", count: true };

const formed = (name, more) => ({ name, ...labels(say(`fields.${name.split(".").at(-1)}`)), ...more });

/** Fields of the card's extensions that matter in chats with several characters. */
const TOGETHER = [
  formed("extensions.talekeeper.public", AREA),
  formed("extensions.talkativeness", { kind: "number", min: 0, max: 1, step: 0.05, placeholder: 0.5 }),
];

const REPLIES = "extensions.talekeeper.quick_replies";

const FORM = [
  ...Object.entries(GROUPS).map(([group, names]) => ({
    title: group && say(group),
    fields: names.split(" ").map((name) => formed(name, KINDS[name] ?? AREA)),
  })),
  { title: say("together"), fields: TOGETHER },
  { title: say("note"), fields: NOTE },
  { title: t("replies.title"), fields: [{ name: REPLIES, control: replyEditor }] },
];

/** A card's note, quick replies and fields for groups are stored in its extensions. */
const extended = (item) => {
  const note = { position: "at_depth", role: "system", scan: false, ...item.extensions.talekeeper?.authors_note };
  return Object.fromEntries([
    ...NOTE.map(({ name }) => [name, note[name.split(".")[1]]]),
    ...[...TOGETHER, { name: REPLIES }].map(({ name }) => [name, at(item, name)]),
  ]);
};
const cardPatch = (changes) => {
  const { "extensions.talekeeper.public": seen, "extensions.talkativeness": talk, [REPLIES]: replies, ...own } = changes;
  const { authors_note: patched } = patchOf(own);
  const patch = Object.fromEntries(Object.entries(own).filter(([name]) => !name.includes(".")));
  const quick = replies && { quick_replies: replies.length ? replies : null };
  const ours = { ...(seen !== undefined && { public: seen || null }), ...quick, ...(patched && { authors_note: patched }) };
  const extensions = { ...(talk !== undefined && { talkativeness: talk }), ...(Object.keys(ours).length && { talekeeper: ours }) };
  if (Object.keys(extensions).length) patch.extensions = extensions;
  return patch;
};

/** A list of long texts that can be added, edited and deleted. */
function texts({ label }) {
  const list = h("ol.stack");
  const add = (value) => {
    const { element, input, write } = control({ ...AREA, name: "greeting", label: say("greeting") });
    const hide = (is) => () => {
      line.hidden = is;
      input.dispatchEvent(new Event("change", { bubbles: true }));
    };
    const cut = () => {
      undoable(say("greeting_deleted"), { hide: hide(true), act() {}, show: hide(false) });
      another.focus();
    };
    const line = h("li", element, act("delete", say("cut"), cut, "quiet"));
    write(value);
    list.append(line);
    return input;
  };
  const another = act("plus", say("greeting_add"), () => add("").focus());
  return {
    element: h("fieldset.field.area.texts", h("legend", label), list, another),
    read() {
      const inputs = [...list.querySelectorAll("li:not([hidden]) textarea")];
      return inputs.map((each) => each.value).filter((each) => each.trim());
    },
    write: (values = []) => values.forEach(add),
    fault() {},
  };
}

/** A list of links next to the form. */
function links(title, items, place, note, extra) {
  const link = ({ id, name, title }) => h("a.grow.clip", { href: `#/${place}/${id}` }, name ?? title);
  const list = h("ul.list", items.map((item) => h("li", link(item), note(item))));
  return h("section", h("h2", title), list, extra);
}

async function books(id, box) {
  const path = `/characters/${id}/lorebooks`;
  const { items } = await api.get(path);
  const change = (method, book) => async () => {
    await api[method](`${path}/${book.id}`);
    await books(id, box);
  };
  const link = async ({ currentTarget: button }) => {
    const others = (await lorebooks.all()).filter((book) => !items.some((own) => own.id === book.id));
    menu(button, [
      ...others.map((book) => ({ label: book.name, act: change("put", book) })),
      { label: say("books_all"), icon: "book", act: () => (location.hash = "#/lorebooks") },
    ]);
  };
  // The lorebook that was imported with the card belongs to it.
  const unlink = (book) => {
    const label = say("unlink", { name: book.name });
    return book.character_id !== id && act("close", label, change("delete", book), "quiet");
  };
  fill(box, links(say("books"), items, "lorebooks", unlink, act("link", say("link"), link)));
}

/** The prompt preset of the character's chats. */
function presetOf(item, presets) {
  const options = [[null, t("presets.default")], ...presets.map((each) => [each.id, each.name])];
  const chosen = control({ kind: "select", ...labels(t("presets.chosen")), options });
  chosen.write(presets.some((each) => each.id === item.preset_id) ? item.preset_id : null);
  chosen.input.onchange = () => attempt(async () => {
    await api.put(`/characters/${item.id}/preset`, { preset_id: chosen.read() });
    item.preset_id = chosen.read();
    characters.drop();
  });
  return chosen.element;
}

/** Route: #/characters/ID */
export default async function ({ params: { id }, signal, title }) {
  const [item, chats, presets] = await Promise.all([
    api.get(`/characters/${id}`, { signal }),
    api.get("/chats", { query: { character_id: id, limit: 20 }, signal }),
    api.all("/presets", { signal }),
  ]);
  const heading = h("h1");
  const named = () => {
    fill(heading, item.name);
    title(item.name);
  };
  named();
  const form = editing(characters, item, FORM, signal, named, { ...item, ...extended(item) }, cardPatch);
  const saved = async (patch) => {
    await form.flush();
    await change(characters, item, patch, signal);
  };
  const sum = h("p.figure", { role: "status" });
  const counts = {};
  on(form.element, "counted", ({ target, detail }) => {
    if (ALWAYS.includes(target.name)) counts[target.name] = detail;
    const count = Object.values(counts).reduce((all, each) => all + each, 0);
    fill(sum, say("always", { count }));
  });
  const copy = async () => {
    await form.flush();
    await duplicate(item, (made) => (location.hash = `#/characters/${made.id}`));
  };
  const erase = () => {
    characters.remove(id, item.name);
    location.hash = "#/characters";
  };
  const acts = [
    { label: say("duplicate"), icon: "copy", act: copy },
    null,
    ...exports(item, form.flush),
    null,
    deleting(erase),
  ];
  const side = h("div");
  const prompts = presets.length > 0 && presetOf(item, presets);
  books(id, side);
  const bring = act("upload", say("import_chat"), () => files.choose(item));
  const when = (chat) => h("small.figure", ago(chat.updated_at));
  return h(
    "div.page",
    h("a.row.back", { href: "#/characters" }, icon("left"), say("characters")),
    h(
      "header.editor-head",
      h("div.grow", heading, sum),
      star(item),
      chatButton(item),
      more(say("more"), acts),
    ),
    h(
      "div.editor",
      portrait(characters, item, signal),
      form.element,
      h("div", side, prompts, await backgroundOf("character", id, signal), cardScripts(item, saved, signal), links(say("chats"), chats.items, "chats", when, bring)),
    ),
  );
}
