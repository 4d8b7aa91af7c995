/** A book's entries as a list: to be found, opened, switched on and off, moved, deleted. */
import { api } from "../core/api.js";
import { attempt, menu, undoable } from "../core/dialogs.js";
import { act, h, settled } from "../core/dom.js";
import { finder } from "../core/form.js";
import { lorebooks } from "../core/store.js";
import { number, t } from "../core/words.js";
import { called, patch, place } from "./entry.js";

const COUNTED = 50;

/**
 * The list of a book at `path`.
 *
 * @param {object} acts `open(id)`; `add()`; `toggle(row, is)`: its switch was pressed; `changed()`.
 * @returns {{element, rows, add, read, finish}} `rows` by id: `{ entry, element, tokens, draw(),
 *   save(changes) }`; `add(entry)` makes one; `read()` gets the first page, `finish()` the rest.
 */
export function entryList(path, { open, add, toggle, changed }, signal) {
  const rows = new Map();
  const state = h("p.figure.grow", { role: "status" });
  const wanted = ["\n"];
  const told = (count) => (state.textContent = t("lore.entries", { count }));
  const find = finder(t("lore.find_entry"), told, wanted);
  const list = h("ol.lore-entries", { "aria-label": t("lore.list") });
  const filter = h(
    "select",
    { "aria-label": t("lore.show"), onchange: () => find.run((wanted[0] = `\n${filter.value}`)) },
    ["all", "on", "off", "always"].map((each, at) =>
      h("option", { value: at ? `${each}\n` : "" }, t(`lore.shown.${each}`)),
    ),
  );

  const arrange = settled(() => {
    const entry_ids = [...list.children].map((each) => each.id);
    return attempt(() => api.put(`${path}/entries/order`, { entry_ids }, { keepalive: true }));
  }, 600);
  signal.addEventListener("abort", arrange.now, { once: true });
  addEventListener("pagehide", arrange.now, { signal });
  /** Move a row among those that are shown: `to(its place, the last place)`. */
  const move = (row, to) => {
    const all = [...list.children].filter(({ hidden }) => !hidden);
    const from = all.indexOf(row.element);
    const at = to(from, all.length - 1);
    if (!all[at] || at === from) return;
    all[at][at > from ? "after" : "before"](row.element);
    state.textContent = t("lore.moved", { place: at + 1 });
    arrange();
  };
  const MOVES = {
    up: (from) => from - 1,
    down: (from) => from + 1,
    top: () => 0,
    bottom: (from, last) => last,
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
    const [name, about, tokens] = [h("strong.clip"), h("small.soft.clip"), h("span.figure")];
    const on = h("input", { type: "checkbox", role: "switch", onchange: () => toggle(row, on.checked) });
    const button = h("button.lore-open", { type: "button", onclick: () => open(entry.id) }, name, about);
    const moving = ([way, to]) => ({ label: t(`lore.${way}`), act: () => move(row, to) });
    const deleting = { label: t("common.delete"), icon: "delete", danger: true, act: () => drop(row) };
    const offer = () => menu(more, [...Object.entries(MOVES).map(moving), null, deleting]);
    const more = act("more", "", offer, "quiet");
    const element = h("li", { id: entry.id }, on, button, tokens, more);
    const item = [element, ""];
    const row = {
      entry,
      element,
      tokens,
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
        more.ariaLabel = t("lore.more", { name: label });
        const words = [label, ...keys, ...entry.secondary_keys, entry.content];
        const texts = [...words, enabled ? "on" : "off", constant ? "always" : "", ""];
        // Nothing is found in what is about to go.
        item[1] = row.isGone ? "" : texts.join("\n");
      },
    };
    row.draw();
    rows.set(entry.id, row);
    find.items.push(item);
    list.append(element);
    return row;
  };

  let after;
  const read = async () => {
    const { items, next } = await api.get(`${path}/entries`, { query: { limit: 500, after }, signal });
    after = next;
    items.forEach(put);
    find.run();
  };
  const finish = async () => {
    while (after) await read();
    const all = [...rows.values()];
    while (all.length) {
      const some = all.splice(0, COUNTED);
      const texts = some.map(({ entry }) => entry.content);
      const { counts } = await api.post("/tokens", { texts }, { signal });
      some.forEach((row, at) => (row.tokens.textContent = number(counts[at])));
    }
  };

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
    read,
    finish,
  };
}
