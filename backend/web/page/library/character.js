/** One character: its card, its picture, its lorebooks, its chats. */
import { api } from "../core/api.js";
import { menu, undoable } from "../core/dialogs.js";
import { act, h, icon, refill } from "../core/dom.js";
import { control } from "../core/form.js";
import { characters, lorebooks } from "../core/store.js";
import { ago, t } from "../core/words.js";
import { editing, portrait } from "./parts.js";
import { chatButton } from "./start.js";

/** Fields by how often they are used. */
const GROUPS = {
  "": "name description personality scenario first_mes",
  greetings: "alternate_greetings group_only_greetings",
  instructions: "mes_example system_prompt post_history_instructions",
  about: "tags nickname creator character_version creator_notes",
};
/** What is in the prompt of every reply. */
const ALWAYS = `description personality scenario ${GROUPS.instructions}`.split(" ");
const KINDS = {
  name: { wide: true, most: 200, required: true },
  nickname: {},
  creator: {},
  character_version: {},
  tags: { kind: "words", wide: true },
  alternate_greetings: { control: texts },
  group_only_greetings: { control: texts },
};
const AREA = { kind: "area", count: true };

const FORM = Object.entries(GROUPS).map(([group, names]) => ({
  title: group && t(`library.${group}`),
  fields: names.split(" ").map((name) => {
    const [label, help] = t(`library.fields.${name}`).split(" | ");
    return { name, label, help, ...(KINDS[name] ?? AREA) };
  }),
}));

/** A list of long texts: added to, edited, deleted. */
function texts({ label }) {
  const list = h("ol.stack");
  const fault = h("small.fault", { role: "alert" });
  const add = (value) => {
    const { element, input, write } = control({ ...AREA, name: "greeting", label: t("library.greeting") });
    const hide = (is) => () => {
      line.hidden = is;
      input.dispatchEvent(new Event("change", { bubbles: true }));
    };
    const cut = () => {
      undoable(t("library.greeting_deleted"), { hide: hide(true), act() {}, show: hide(false) });
      more.focus();
    };
    const line = h("li", {}, element, act("delete", t("library.cut"), cut, "quiet"));
    write(value);
    list.append(line);
    return input;
  };
  const more = act("plus", t("library.greeting_add"), () => add("").focus());
  return {
    element: h("fieldset.field.area.texts", {}, h("legend", {}, label), list, fault, more),
    read() {
      const inputs = [...list.querySelectorAll("li:not([hidden]) textarea")];
      return inputs.map((each) => each.value).filter((each) => each.trim());
    },
    write: (values = []) => values.forEach(add),
    fault: (text = "") => (fault.textContent = text),
  };
}

/** A list of links beside the form. */
function links(title, items, place, note, extra) {
  const link = ({ id, name, title }) => h("a.grow.clip", { href: `#/${place}/${id}` }, name ?? title);
  const list = h("ul.list", {}, items.map((item) => h("li", {}, link(item), note(item))));
  return h("section", {}, h("h2", {}, title), list, extra);
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
      { label: t("library.books_all"), icon: "book", act: () => (location.hash = "#/lorebooks") },
    ]);
  };
  // The book that came with the card belongs to it.
  const unlink = (book) => {
    const label = t("library.unlink", { name: book.name });
    return book.character_id !== id && act("close", label, change("delete", book), "quiet");
  };
  refill(box, links(t("library.books"), items, "lorebooks", unlink, act("link", t("library.link"), link)));
}

/** #/characters/ID */
export default async function ({ params: { id }, signal, title }) {
  const [item, chats] = await Promise.all([
    api.get(`/characters/${id}`, { signal }),
    api.get("/chats", { query: { character_id: id, limit: 20 }, signal }),
  ]);
  const heading = h("h1");
  const named = () => {
    heading.textContent = item.name;
    title(item.name);
  };
  named();
  const form = editing(characters, item, FORM, signal, named);
  const sum = h("p.figure", { role: "status" });
  const counts = {};
  form.element.addEventListener("counted", ({ target, detail }) => {
    if (ALWAYS.includes(target.name)) counts[target.name] = detail;
    const count = Object.values(counts).reduce((all, each) => all + each, 0);
    sum.textContent = t("library.always", { count });
  });
  const file = (format) => ({
    label: t("library.export", { format: format.toUpperCase() }),
    icon: "download",
    async act() {
      await form.flush();
      api.download(`/characters/${id}/export?format=${format}`);
    },
  });
  const erase = () => {
    characters.remove(id, item.name);
    location.hash = "#/characters";
  };
  const more = [
    ...["png", "json", "charx"].map(file),
    null,
    { label: t("common.delete"), icon: "delete", danger: true, act: erase },
  ];
  const side = h("div");
  books(id, side);
  const when = (chat) => h("small.figure", {}, ago(chat.updated_at));
  return h(
    "div.page",
    {},
    h("a.row.back", { href: "#/characters" }, icon("left"), t("library.characters")),
    h(
      "header.editor-head",
      {},
      h("div.grow", {}, heading, sum),
      chatButton(item),
      act("more", t("common.more"), (event) => menu(event.currentTarget, more), "quiet"),
    ),
    h(
      "div.editor",
      {},
      portrait(characters, item, signal),
      form.element,
      h("div", {}, side, chats.items.length > 0 && links(t("library.chats"), chats.items, "chats", when)),
    ),
  );
}
