/** All lorebooks: finding, making, importing, exporting, deleting them. */
import { api } from "../core/api.js";
import { attempt, dialog, explain, menu } from "../core/dialogs.js";
import { fill, h, icon, style } from "../core/dom.js";
import { progress } from "../core/form.js";
import { characters, chats, chronicles, lorebooks, personas } from "../core/store.js";
import { t } from "../core/words.js";
import { act, dropping, finder, naming, pick, remove } from "../library/parts.js";

/** What may have a book, by id: `{ kind, name }`. */
export async function holders() {
  const found = new Map();
  const read = async ([kind, store]) => {
    for (const { id, name, title } of await store.all()) found.set(id, { kind, name: name ?? (title || t("chats.untitled")) });
  };
  await Promise.all(Object.entries({ characters, personas, chats, chronicles }).map(read));
  return found;
}

/** The button with what can be done with a book. */
export const actions = (book, then) =>
  act("more", t("lore.more", { name: book.name }), ({ currentTarget }) => {
    const exporting = (format) => ({
      icon: "download",
      label: t(`lore.formats.${format}`),
      act: () => h("a", { href: api.url(`/lorebooks/${book.id}/export?format=${format}`), download: "" }).click(),
    });
    const drop = () => (then?.(), remove(lorebooks, "/lorebooks", book, book.name));
    menu(currentTarget, [...["world_info", "v2", "v3"].map(exporting), null, { label: t("common.delete"), icon: "delete", danger: true, act: drop }]);
  }, "quiet");

const create = () =>
  dialog(t("lore.new"), (close) => naming("/lorebooks", lorebooks, ({ id }) => (close(), (location.hash = `#/lorebooks/${id}`))));
const entries = (book) => h("span.figure", {}, t("lore.entries", { count: book.entry_count }));
const open = (book) => h("a", { href: `#/lorebooks/${book.id}` }, book.name);

/** #/lorebooks */
export default async function ({ signal, title }) {
  title(t("shell.lorebooks"));
  const find = finder(t("lore.find"));
  const list = h("ul.list.lore-list");
  const files = h("ul.list.lore-list", { "aria-label": t("lore.files"), role: "log" });

  const draw = async () => {
    const [books, all] = await Promise.all([lorebooks.all(), holders()]);
    find.items = books.map((book) => {
      const ids = [book.character_id, book.chronicle_id, ...Object.values(book.links).flat()];
      const where = [book.is_global && t("lore.fields.is_global"), ...ids.map((id) => all.get(id)?.name)].filter(Boolean).join(" · ");
      const used = h("small.soft.clip", {}, where || t("lore.unused"));
      return [h("li", {}, h("div.grow", {}, open(book), used), entries(book), actions(book)), `${book.name}\n${where}`];
    });
    fill(list, books.length ? find.items.map(([row]) => row) : h("li", {}, h("p.empty.grow", {}, t("lore.what"))));
    find.input.hidden = !books.length;
    find.run();
  };
  const take = async (chosen) => {
    for (const file of [...chosen]) {
      const row = h("li");
      const bar = progress(file.name);
      const show = (sign, ...what) => fill(row, icon(sign), h("div.grow", {}, what));
      show("upload", file.name, bar.element);
      files.prepend(row);
      try {
        const onprogress = (share) => bar.show(share < 1 ? share : null);
        const { lorebook, warnings, skipped } = await api.upload("/lorebooks/import", file, { name: file.name.replace(/\.\w+$/, ""), onprogress });
        if (skipped) warnings.push(t("lore.skipped", { count: skipped }));
        show("check", open(lorebook), " ", entries(lorebook), warnings.map((each) => h("small", {}, each)));
        lorebooks.changed();
      } catch (error) {
        show("alert", file.name, h("small.fault", {}, explain(error)));
      }
    }
  };

  addEventListener("lorebooks-changed", () => attempt(draw), { signal });
  await Promise.all([draw(), style("library")]);
  const load = act("upload", t("common.import"), () => pick(".json,.lorebook,.png,.charx", take, true));
  const head = h("header", {}, h("h1", {}, t("shell.lorebooks")), load, act("plus", t("lore.new"), create, "primary"));
  const view = h("div.page", { "data-drop": t("lore.drop") }, head, h("div.stack", {}, files, find.input, list));
  dropping(window, view, take, signal);
  return view;
}
