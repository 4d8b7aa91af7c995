/** The list of characters. */
import { fill, h, refill } from "../core/dom.js";
import { finder } from "../core/form.js";
import { characters } from "../core/store.js";
import { overview, say } from "./parts.js";
import { card, importButton, makeButton, offer } from "./start.js";

const TAGS = 18;

/** Route: #/characters */
export default async function ({ signal, title }) {
  title(say("characters"));
  const chosen = new Set();
  const count = h("p.figure", { role: "status" });
  const told = (found) => fill(count, say("count", { count: found }));
  const find = finder(say("search"), told, chosen);
  const tags = h("div.row.tags", { role: "group", "aria-label": say("tags") });
  const grid = h("ul.people");
  const body = h("div.stack");

  const tag = ([key, times]) => {
    const press = ({ currentTarget: button }) => {
      if (!chosen.delete(key)) chosen.add(key);
      button.ariaPressed = chosen.has(key);
      find.run();
    };
    const attributes = { "aria-pressed": String(chosen.has(key)), onclick: press };
    return h("button.tag", attributes, key.slice(2, -1), h("small", {}, times));
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
    refill(tags, known.filter(([key], at) => at < TAGS || chosen.has(key)).map(tag));
    find.run();
    if (!items.length) fill(body, offer());
    else if (!grid.isConnected) fill(body, h("div.row", {}, find.input, count), tags, grid);
  };
  addEventListener("characters-changed", draw, { signal });
  await draw();
  const acts = h("div.row", {}, importButton(), makeButton("primary"));
  return overview("characters", acts, body);
}
