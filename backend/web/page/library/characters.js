/** All characters. */
import { attempt } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { characters } from "../core/store.js";
import { t } from "../core/words.js";
import { finder, tabs } from "./parts.js";
import { card, importButton, imports, offer } from "./start.js";

const TAGS = 18;

/** #/characters */
export default async function ({ signal, title }) {
  title(t("library.characters"));
  const chosen = new Set();
  const count = h("p.figure", { role: "status" });
  const told = (found) => (count.textContent = t("library.count", { count: found }));
  const find = finder(t("library.search"), told, chosen);
  const tags = h("div.row.tags", { role: "group", "aria-label": t("library.tags") });
  const grid = h("ul.people");
  const body = h("div.stack");

  const tag = ([key, times]) => {
    const press = ({ currentTarget: button }) => {
      if (!chosen.delete(key)) chosen.add(key);
      button.ariaPressed = chosen.has(key);
      find.run();
    };
    const pressed = String(chosen.has(key));
    return h("button.tag", { "aria-pressed": pressed, onclick: press }, key.slice(2, -1), h("small", {}, `${times}`));
  };
  const draw = async () => {
    const items = await characters.all();
    const times = new Map();
    find.items = items.map((item) => {
      const own = [...new Set(item.tags.map((each) => `\n#${each.toLowerCase()}\n`))];
      for (const each of own) times.set(each, (times.get(each) ?? 0) + 1);
      return [card(item), [item.name, item.nickname, item.creator, ...own].join("\n")];
    });
    fill(grid, find.items.map(([element]) => element));
    const known = [...times].sort((one, other) => other[1] - one[1]);
    for (const key of chosen) if (!times.has(key)) chosen.delete(key);
    fill(tags, known.filter(([key], at) => at < TAGS || chosen.has(key)).map(tag));
    find.run();
    if (!items.length) fill(body, offer());
    else if (!grid.isConnected) fill(body, h("div.row", {}, find.input, count), tags, grid);
  };
  addEventListener("characters-changed", () => attempt(draw), { signal });
  await draw();
  const view = h("div.page");
  const make = { href: "#/characters/new", "aria-label": t("library.new_character") };
  const acts = h("div.row", {}, importButton(), h("a.button.primary", make, icon("plus"), t("common.new")));
  const head = h("header", {}, h("h1", {}, t("library.characters")), acts);
  return fill(view, head, tabs("characters"), imports(view, signal), body);
}
