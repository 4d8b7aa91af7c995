/** The list of a book's entries: search, open, switch, move, delete. */
import {
  act, api, attempt, deleting, finder, h, lorebooks, more, settled, t, texts, undoable,
} from "../core.js";
import { called, patch, place } from "./entry.js";

/**
 * The list of the book at `path`.
 *
 * @param {object} acts `open(id)`; `add()`; `toggle(row, is)`, called by the switch; `changed()`.
 * @returns {{element, rows, add}} `rows` by id: `{ entry, element, draw(), save(changes) }`;
 *   `add(entry)` adds a row.
 */
export async function entryList(path, { open, add, toggle, changed }, signal) {
  const rows = new Map();
  const state = h("p.figure.grow", { role: "status" });
  const wanted = ["\n"];
  const told = (count) => (state.textContent = t("lore.entries", { count }));
  const find = finder(t("lore.find_entry"), told, wanted);
  const list = h("ol.lore-entries", { "aria-label": t("lore.list") });
  const filter = h(
    "select",
    { "aria-label": t("lore.show"), onchange: () => find.run((wanted[0] = `\n${filter.value}\n`)) },
    Object.entries(texts.lore.shown).map(([value, label]) =>
      h("option", { value: value === "all" ? "" : value }, label),
    ),
  );

  const arrange = settled(() => {
    const entry_ids = [...list.children].map((each) => each.id);
    return attempt(() => api.put(`${path}/entries/order`, { entry_ids }, { keepalive: true }));
  }, 600);
  signal.addEventListener("abort", arrange.now, { once: true });
  addEventListener("pagehide", arrange.now, { signal });
  /** Move a row among the visible ones. */
  const move = (row, way) => {
    const all = [...list.children].filter(({ hidden }) => !hidden);
    const from = all.indexOf(row.element);
    const at = { up: from - 1, down: from + 1, top: 0, bottom: all.length - 1 }[way];
    if (!all[at] || at === from) return;
    all[at][at > from ? "after" : "before"](row.element);
    state.textContent = t("lore.moved", { place: at + 1 });
    arrange();
  };

  const drop = (row) => {
    const { id } = row.entry;
    const gone = (is) => find.run(row.draw((row.isGone = is)));
    undoable(t("common.deleted", { name: called(row.entry) }), {
      hide: () => gone(true),
      async act(options) {
        await api.delete(`${path}/entries/${id}`, undefined, options);
        row.element.remove();
        lorebooks.changed();
      },
      show: () => gone(false),
    });
    if (row.element.ariaCurrent) open();
  };

  const put = (entry) => {
    const [name, about] = [h("strong.clip"), h("small.soft.clip")];
    const on = h("input", { type: "checkbox", role: "switch", onchange: () => toggle(row, on.checked) });
    const button = h("button.lore-open", { type: "button", onclick: () => open(entry.id) }, name, about);
    const moving = (way) => ({ label: t(`lore.${way}`), act: () => move(row, way) });
    const ways = ["up", "down", "top", "bottom"].map(moving);
    const others = more("", [...ways, null, deleting(() => drop(row))]);
    const element = h("li", { id: entry.id }, on, button, others);
    const item = [element, ""];
    const row = {
      entry,
      element,
      async save(changes) {
        const saved = await patch(`${path}/entries/${entry.id}`, entry, changes, entry.revision);
        row.draw();
        changed();
        return saved;
      },
      draw() {
        const label = called(entry);
        const { keys, constant, enabled, probability, position } = entry;
        name.textContent = label;
        about.textContent = [
          constant ? t("lore.shown.always") : keys.join(", "),
          position !== "before_character" && place(entry),
          probability < 100 && `${probability} %`,
        ].filter(Boolean).join(" · ");
        on.checked = enabled;
        on.ariaLabel = t("lore.on", { name: label });
        others.ariaLabel = t("lore.more", { name: label });
        const words = [label, ...keys, ...entry.secondary_keys, entry.content];
        const states = ["", enabled ? "on" : "off", constant ? "always" : "", ""];
        // Entries that are being deleted are not found.
        item[1] = row.isGone ? "" : [...words, ...states].join("\n");
      },
    };
    row.draw();
    rows.set(entry.id, row);
    find.items.push(item);
    list.append(element);
    return row;
  };

  for (const entry of await api.all(`${path}/entries`, { signal })) put(entry);
  find.run();

  return {
    element: h(
      "section.stack",
      {},
      h("div.row", {}, h("span.grow", {}, find.input), filter),
      h("div.row", {}, state, act("plus", t("lore.add"), () => attempt(add), "primary")),
      list,
    ),
    rows,
    add(entry) {
      find.input.value = "";
      const row = put(entry);
      find.run();
      return row;
    },
  };
}
