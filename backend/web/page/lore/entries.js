/** The list of a book's entries: search, open, switch, move, delete. */
import {
  act, api, attempt, combine, commit, deleting, finder, h, isPending, lorebooks, more, on, sendLater, settled,
  t, texts,
} from "../core.js";
import { longList } from "../core/long-list.js";
import { called, patch, place } from "./entry.js";

/**
 * The list of the book at `path`.
 *
 * @param {object} acts `open(id)`; `add()`; `toggle(row, is)`, called by the switch; `changed()`.
 * @returns {{element, rows, add, focus}} `rows` by id: `{ entry, element, draw(), save(changes) }`;
 *   `add(entry)` adds a row; `focus(row)` scrolls to it.
 */
export async function entryList(path, { open, add, toggle, changed }, signal) {
  const rows = new Map();
  const state = h("p.figure.grow", { role: "status" });
  const wanted = ["\n"];
  const list = longList(h("ol.lore-entries", { label: t("lore.list") }), ({ element }) => element, signal);
  const told = (count, found) => {
    state.textContent = t("lore.entries", { count });
    list.show(found.map(([, , row]) => row));
  };
  const find = finder(t("lore.find_entry"), told, wanted);
  const filter = h(
    "select",
    { label: t("lore.show"), onchange: () => find.run((wanted[0] = `\n${filter.value}\n`)) },
    Object.entries(texts.lore.shown).map(([value, label]) =>
      h("option", { value: value === "all" ? "" : value }, label),
    ),
  );

  const arrange = settled(() => attempt(async () => {
    const isAway = ([, , row]) => isPending(row.path);
    // The order names all entries, so deletions come first.
    if (find.items.some(isAway)) await commit();
    const entry_ids = find.items.filter((item) => !isAway(item)).map(([, , { id }]) => id);
    await api.put(`${path}/entries/order`, { entry_ids }, { keepalive: true });
  }), 600);
  signal.addEventListener("abort", arrange.now, { once: true });
  on(window, "pagehide", arrange.now, signal);
  /** Move a row among the visible ones. */
  const move = (row, way) => {
    const all = list.items;
    const from = all.indexOf(row);
    const at = { up: from - 1, down: from + 1, top: 0, bottom: all.length - 1 }[way];
    if (!all[at] || at === from) return;
    const placeOf = (one) => find.items.findIndex(([, , each]) => each === one);
    const [item] = find.items.splice(placeOf(row), 1);
    find.items.splice(placeOf(all[at]) + (at > from), 0, item);
    find.run();
    list.reveal(row);
    state.textContent = t("lore.moved", { place: at + 1 });
    arrange();
  };

  const drop = (row) => {
    sendLater(t("common.deleted", { name: called(row.entry) }), row.path, {
      then() {
        find.items = find.items.filter(([, , each]) => each !== row);
        lorebooks.changed();
      },
    });
    if (row.element.ariaCurrent) open();
  };

  /** Make the element of a row. */
  const build = (row) => {
    const { entry } = row;
    const [name, about] = [h("strong.clip"), h("small.soft.clip")];
    const box = h("input", { type: "checkbox", role: "switch", onchange: () => toggle(row, box.checked) });
    const button = h("button.lore-open", { onclick: () => open(row.id) }, name, about);
    const moving = (way) => ({ label: t(`lore.${way}`), act: () => move(row, way) });
    const ways = ["up", "down", "top", "bottom"].map(moving);
    const others = more("", [...ways, null, deleting(() => drop(row))]);
    row.paint = () => {
      const label = called(entry);
      name.textContent = label;
      about.textContent = combine([
        entry.constant ? t("lore.shown.always") : entry.keys.join(", "),
        entry.position !== "before_character" && place(entry),
        entry.probability < 100 && `${entry.probability} %`,
      ]);
      box.checked = entry.enabled;
      box.ariaLabel = t("lore.on", { name: label });
      others.ariaLabel = t("lore.more", { name: label });
    };
    row.paint();
    return h("li", box, button, others);
  };

  const put = (entry) => {
    let element;
    const row = {
      id: entry.id,
      path: `${path}/entries/${entry.id}`,
      entry,
      get element() {
        return (element ??= build(row));
      },
      async save(changes) {
        const saved = await patch(row.path, entry, changes, entry.revision);
        row.draw();
        changed();
        return saved;
      },
      draw() {
        const { keys, constant, enabled } = entry;
        const words = [called(entry), ...keys, ...entry.secondary_keys, entry.content];
        const states = ["", enabled ? "on" : "off", constant ? "always" : "", ""];
        // Entries that are being deleted are not found.
        item[1] = isPending(row.path) ? "" : [...words, ...states].join("\n");
        row.paint?.();
      },
    };
    const item = [null, "", row];
    row.draw();
    rows.set(row.id, row);
    find.items.push(item);
    return row;
  };

  on(window, "pending", () => {
    for (const row of rows.values()) row.draw();
    find.run();
  }, signal);
  await api.all(`${path}/entries`, { signal, each: put });
  find.run();

  return {
    element: h(
      "section.stack",
      h("div.row", h("span.grow", find.input), filter),
      h("div.row", state, act("plus", t("lore.add"), () => attempt(add), "primary")),
      list.element,
    ),
    rows,
    focus(row) {
      list.reveal(row);
      row.element.querySelector("button").focus();
    },
    add(entry) {
      find.input.value = filter.value = "";
      wanted[0] = "\n";
      const row = put(entry);
      find.run();
      list.reveal(row);
      return row;
    },
  };
}
