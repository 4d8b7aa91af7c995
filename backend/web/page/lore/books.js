/** The list of lorebooks: search, create, import, export, delete. */
import {
  act, api, attempt, combine, deleting, download, fill, finder, h, lorebooks, more, on, style, t,
} from "../core.js";
import { importing } from "../core/importing.js";
import { exampleBook } from "../library/examples.js";
import { naming } from "../library/parts.js";
import { foundBy } from "./found.js";
import { holders } from "./links.js";

/** The menu of a lorebook. */
export function actions(book, then) {
  const exporting = (format) => ({
    icon: "download",
    label: t(`lore.formats.${format}`),
    act: () => download(`/lorebooks/${book.id}/export?format=${format}`),
  });
  const drop = () => {
    then?.();
    lorebooks.remove(book.id, book.name);
  };
  return more(t("lore.more", book), [...["world_info", "v2", "v3"].map(exporting), null, deleting(drop)]);
}

const address = ({ id }) => `#/lorebooks/${id}`;
const open = (book) => h("a", { href: address(book) }, book.name);
const entries = (book) => h("span.figure", t("lore.entries", { count: book.entry_count }));

const create = () => naming(lorebooks, t("lore.new"), (book) => (location.hash = address(book)));

const files = importing({
  accept: ".json,.lorebook,.scenario,.png,.charx,.byaf",
  async send(file, row) {
    const name = file.name.replace(/\.\w+$/, "");
    const { lorebook, found_by, warnings, skipped } = await api.upload("/lorebooks/import", file, { name, ...row });
    lorebooks.changed();
    if (skipped) warnings.push(t("lore.skipped", { count: skipped }));
    return { text: [open(lorebook), " ", entries(lorebook), warnings.map((each) => h("small", each)), foundBy(lorebook, found_by)] };
  },
});

/** Route: #/lorebooks */
export default async function ({ signal, title }) {
  title(t("shell.lorebooks"));
  const find = finder(t("lore.find"));
  const list = h("ul.list.lore-list");

  const draw = async () => {
    const [books, all] = await Promise.all([lorebooks.all(), holders()]);
    find.items = books.map((book) => {
      const ids = [book.character_id, book.chronicle_id, ...Object.values(book.links).flat()];
      const names = [book.is_global && t("lore.fields.is_global"), ...ids.map((id) => all.get(id)?.name)];
      const where = combine(names);
      const about = h("div.grow", open(book), h("small.soft.clip", where || t("lore.unused")));
      return [h("li", about, entries(book), actions(book)), `${book.name}\n${where}`];
    });
    const none = h("li", h("div.empty.grow", h("p", t("lore.what")), exampleBook()));
    fill(list, books.length ? find.items.map(([row]) => row) : none);
    find.input.hidden = !books.length;
    find.run();
  };
  on(window, "lorebooks-changed", () => attempt(draw), signal);
  await Promise.all([draw(), style("library")]);
  const load = act("upload", t("common.import"), () => files.choose());
  const make = act("plus", t("lore.new"), create, "primary");
  const head = h("header", h("h1", t("shell.lorebooks")), h("div.row", load, make));
  return h("div.page", head, h("div.stack", find.input, list));
}
