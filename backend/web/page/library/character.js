/** One character: its card, its picture, its lorebooks, its chats. */
import { api } from "../core/api.js";
import { attempt, menu, undoable } from "../core/dialogs.js";
import { h, icon } from "../core/dom.js";
import { autoform, control } from "../core/form.js";
import { characters, lorebooks } from "../core/store.js";
import { ago, t } from "../core/words.js";
import { act, naming, portrait, refill, remove, saver } from "./parts.js";
import { chatButton } from "./start.js";

/** Fields by how often they are used. Those with a `*` are in the prompt of every reply. */
const GROUPS = {
  "": "name *description *personality *scenario first_mes",
  greetings: "alternate_greetings group_only_greetings",
  instructions: "*mes_example *system_prompt *post_history_instructions",
  about: "tags nickname creator character_version creator_notes",
};
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

const groups = () =>
  Object.entries(GROUPS).map(([group, names]) => ({
    title: group && t(`library.${group}`),
    fields: names.split(" ").map((each) => {
      const name = each.replace("*", "");
      const [label, help] = t(`library.fields.${name}`).split(" | ");
      return { name, label, help, ...(KINDS[name] ?? AREA) };
    }),
  }));

/** A list of long texts: added to, edited, put in another order, deleted. */
function texts({ label }) {
  const list = h("ol.stack");
  let rows = [];
  const draw = () => {
    refill(list, rows.map((row) => row.line));
    rows.forEach(({ line }, at) => {
      line.querySelector("label").textContent = t("library.greeting", { number: at + 1 });
    });
  };
  const put = (row, at) => {
    rows = rows.filter((each) => each !== row);
    if (at !== undefined) rows.splice(Math.max(0, at), 0, row);
    draw();
    list.dispatchEvent(new Event("change", { bubbles: true }));
  };
  const make = (value) => {
    const row = control({ ...AREA, name: "greeting", label: "" });
    const cut = () => {
      const at = rows.indexOf(row);
      undoable(t("library.greeting_deleted"), { hide: () => put(row), act() {}, show: () => put(row, at) });
    };
    const step = (by) => () => put(row, rows.indexOf(row) + by);
    const button = (sign, name, does) => act(sign, t(`library.${name}`), does, "quiet");
    const buttons = [button("left", "up", step(-1)), button("right", "down", step(1)), button("delete", "cut", cut)];
    row.line = h("li", {}, row.element, buttons);
    row.write(value);
    return row;
  };
  const add = () => {
    put(make(""), rows.length);
    rows.at(-1).input.focus();
  };
  const fault = h("small.fault", { role: "alert" });
  const more = act("plus", t("library.greeting_add"), add);
  return {
    element: h("fieldset.field.area.texts", {}, h("legend", {}, label), list, fault, more),
    read: () => rows.map((row) => row.read()).filter((each) => each.trim()),
    write(values = []) {
      rows = values.map(make);
      draw();
    },
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
  const change = (book, method) =>
    attempt(async () => {
      await api[method](`${path}/${book.id}`);
      await books(id, box);
    });
  const { items } = await api.get(path);
  const link = async ({ currentTarget: button }) => {
    const own = new Set(items.map((each) => each.id));
    const others = ((await attempt(lorebooks.all)) ?? []).filter((each) => !own.has(each.id));
    const all = { label: t("library.books_all"), icon: "book", act: () => (location.hash = "#/lorebooks") };
    menu(button, [...others.map((book) => ({ label: book.name, act: () => change(book, "put") })), all]);
  };
  const note = (book) => {
    const label = t("library.unlink", { name: book.name });
    return book.character_id !== id && act("close", label, () => change(book, "delete"), "quiet");
  };
  refill(box, links(t("library.books"), items, "lorebooks", note, act("link", t("library.link"), link)));
}

/** #/characters/ID, and #/characters/new */
export default async function ({ params: { id }, signal, title }) {
  const back = h("a.row", { href: "#/characters" }, icon("left"), t("library.characters"));
  if (id === "new") {
    title(t("library.new_character"));
    const form = naming("/characters", characters, (made) => location.replace(`#/characters/${made.id}`));
    return h("div.page.narrow", {}, back, h("header", {}, h("h1", {}, t("library.new_character"))), form);
  }
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
  const save = saver("/characters", item, characters, signal, named);
  const form = autoform({ groups: groups(), value: { ...item }, save, signal });
  const sum = h("p.figure", { role: "status" });
  const counts = {};
  form.element.addEventListener("counted", ({ target, detail }) => {
    if (Object.values(GROUPS).join(" ").includes(`*${target.name}`)) counts[target.name] = detail;
    sum.textContent = t("library.always", { count: Object.values(counts).reduce((all, each) => all + each, 0) });
  });
  const file = (format) => ({
    label: t("library.export", { format: format.toUpperCase() }),
    icon: "download",
    async act() {
      await form.flush();
      h("a", { href: api.url(`/characters/${id}/export?format=${format}`), download: "" }).click();
    },
  });
  const erase = () => {
    remove(characters, "/characters", item, item.name);
    location.hash = "#/characters";
  };
  const more = [
    ...["png", "json", "charx"].map(file),
    null,
    { label: t("common.delete"), icon: "delete", danger: true, act: erase },
  ];
  const side = h("div");
  attempt(() => books(id, side));
  const when = (chat) => h("small.figure", {}, ago(chat.updated_at));
  return h(
    "div.page",
    {},
    back,
    h(
      "header",
      {},
      h("div.grow", {}, heading, sum),
      chatButton(item),
      act("more", t("common.more"), (event) => menu(event.currentTarget, more), "quiet"),
    ),
    h(
      "div.editor",
      {},
      portrait("characters", item, characters, signal),
      form.element,
      h("div", {}, side, chats.items.length > 0 && links(t("library.chats"), chats.items, "chats", when)),
    ),
  );
}
