/** The list of characters. */
import { act, characters, chats, fill, finder, h, kept, on, set, tagFilter, tagKey } from "../core.js";
import { longList } from "../core/long-list.js";
import { menuOf, star } from "./acts.js";
import { face } from "./faces.js";
import { overview, say } from "./parts.js";
import { characterSelection } from "./selection.js";
import { card, chatButton, importButton, makeButton, offer } from "./start.js";

/** The mark of favourites among the texts that are searched. Tags are marked with `#`. */
const FAVOURITE = "\n*\n";

const collator = new Intl.Collator();
/** Orders by name. `used` has the time of each character's last chat. */
const ORDERS = {
  recent: (used) => (a, b) => compare(used.get(b.id) ?? b.created_at, used.get(a.id) ?? a.created_at),
  name: () => (a, b) => collator.compare(a.name, b.name),
  newest: () => (a, b) => compare(b.created_at, a.created_at),
};
const compare = (one, other) => (one < other ? -1 : Number(one > other));

/** Return the time of the last chat of each character. */
function lastUses(talks) {
  const used = new Map();
  for (const { character_ids, updated_at } of talks) {
    for (const id of character_ids) if (!(used.get(id) > updated_at)) used.set(id, updated_at);
  }
  return used;
}

/** A character in a list. */
const line = (item, ...more) =>
  h("li", face(item, { small: true }),
    h("div.grow",
      h("a.clip", { href: `#/characters/${item.id}` }, item.name),
      h("small.soft.clip", item.tags.slice(0, 8).join(" · "))),
    chatButton(item), more);

/** Route: #/characters */
export default async function ({ signal, title }) {
  title(say("characters"));
  const wanted = new Set();
  const count = h("p.figure", { role: "status" });
  const told = (number, found) => {
    fill(count, say("count", { count: number }));
    rows.show(found.map(([, , item]) => item));
  };
  const find = finder(say("search"), told, wanted);
  const tags = tagFilter(say("tags"), wanted, find);
  const list = h("ul");
  const body = h("div.stack");
  const select = act("check", say("select"), () => chosen.turn(chosen.element.hidden));
  const turned = (is) => set(select, { pressed: is });
  const chosen = characterSelection(list, { shown: () => rows.items, button: select, turned, signal });
  set(select, { pressed: false });
  const element = (item) => (look === "list" ? line : card)(item, star(item), menuOf(item), chosen.box(item));
  const rows = longList(list, element, signal);

  let look = kept.get("characters.look", "gallery");
  let order = kept.get("characters.order", "recent");
  const reordered = ({ target }) => {
    kept.set("characters.order", (order = target.value));
    draw();
  };
  const orders = h("select.order", { label: say("order"), onchange: reordered },
    Object.keys(ORDERS).map((each) => h("option", { value: each, selected: each === order }, say(`orders.${each}`))));
  const looks = ["gallery", "list"].map((name) => act(name, say(name), () => {
    kept.set("characters.look", (look = name));
    rows.clear();
    draw();
  }, "quiet"));
  const favourites = act("star", say("favourites"), () => {
    if (!wanted.delete(FAVOURITE)) wanted.add(FAVOURITE);
    set(favourites, { pressed: wanted.has(FAVOURITE) });
    find.run();
  }, "star");
  set(favourites, { pressed: false });

  const draw = async () => {
    const [items, talks] = await Promise.all([characters.all(), chats.all().catch(() => [])]);
    list.className = look === "list" ? "list cast-list" : "people";
    looks.forEach((button, at) => set(button, { pressed: at === Number(look === "list") }));
    chosen.keep(items);
    chosen.element.hidden || list.classList.add("selecting");
    const by = ORDERS[order](lastUses(talks));
    const sorted = items.toSorted((a, b) => b.is_favourite - a.is_favourite || by(a, b));
    find.items = sorted.map((item) => {
      const text = [item.name, item.nickname, item.creator, ...item.tags.map(tagKey), item.is_favourite ? FAVOURITE : ""];
      return [null, text.join("\n"), item];
    });
    tags.show(items);
    find.run();
    if (!items.length) fill(body, offer());
    else if (!list.isConnected) {
      const view = h("div.row", { role: "group", label: say("looks") }, looks);
      fill(body, h("div.row", find.input, orders, favourites, view, select, count), tags.element, chosen.element, rows.element);
    }
  };
  on(window, "characters-changed", draw, signal);
  await draw();
  const acts = h("div.row", importButton(), makeButton("primary"));
  return overview("characters", acts, body);
}
