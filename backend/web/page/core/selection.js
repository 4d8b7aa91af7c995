/** The selection of several items, and the bar with the actions for them. */
import { act, fill, h, on } from "./dom.js";
import { t } from "./words.js";

/**
 * @param {object} options `label` names the bar. `counted(count)` is the text for a number of
 *   items. `tools` are the buttons. `all()` selects all items, if that is possible. `drawn(items)`
 *   runs after each change of the bar, `turned(is, leaves)` when the selection begins or ends.
 *   `leaves` is true if the bar or the box that has the focus is hidden. Until `signal` aborts,
 *   Escape ends it wherever nothing else uses the key.
 * @returns {{element, items, has, choose, keep, turn, draw}} `items` are the selected ones;
 *   `choose(item, is)` selects an item or not; `keep(items)` forgets all others and replaces
 *   those that have changed; `turn(is)` begins or ends.
 */
export function selection({ label, counted, tools, all, signal, look = "", turned = () => {}, drawn = () => {} }) {
  const chosen = new Map();
  const count = h("span.grow", { role: "status" });
  const self = {
    element: h("div.row.selection", { role: "group", class: look, label, hidden: true },
      count, all && act("check", t("common.select_all"), all), tools, act("close", t("common.done"), () => self.turn(false))),
    get items() {
      return [...chosen.values()];
    },
    has: ({ id }) => chosen.has(id),
    choose(item, is) {
      if (is) chosen.set(item.id, item);
      else chosen.delete(item.id);
    },
    keep(items) {
      const kept = items.filter(self.has);
      chosen.clear();
      for (const each of kept) self.choose(each, true);
      self.draw();
    },
    turn(is) {
      const { activeElement } = document;
      const leaves = !is && (self.element.contains(activeElement) || activeElement.matches(".pick"));
      chosen.clear();
      self.element.hidden = !is;
      turned(is, leaves);
      self.draw();
    },
    draw() {
      fill(count, counted(chosen.size));
      for (const tool of tools) tool.disabled = !chosen.size;
      drawn(self.items);
    },
  };
  on(window, "keydown", (event) => {
    const { target } = event;
    if (event.key !== "Escape" || self.element.hidden || event.defaultPrevented) return;
    // In a field with a text, browsers or the field itself use the key.
    if (target.closest("dialog, [role=menu]") || (target.matches("input[type=search]") && target.value)) return;
    event.preventDefault();
    self.turn(false);
  }, signal);
  return self;
}

/**
 * A selection with check boxes in a list, which has the class "selecting" meanwhile.
 *
 * @param {object} options Those of `selection`. `shown()` returns the visible items, `named(item)`
 *   the name of the box of an item. `button` begins the selection.
 * @returns {object} A selection. `box(item)` makes the box of an item.
 */
export function listSelection(list, { shown, named, button, turned, ...options }) {
  const check = () => {
    for (const box of list.querySelectorAll(".pick")) box.checked = self.has({ id: box.value });
  };
  const all = () => {
    const items = shown();
    const is = !items.every(self.has);
    for (const item of items) self.choose(item, is);
    check();
    self.draw();
  };
  const self = selection({
    ...options,
    all,
    look: "card",
    turned(is, leaves) {
      list.classList.toggle("selecting", is);
      check();
      turned(is);
      if (leaves) button.focus();
    },
  });
  // While items are selected, a click anywhere on one selects it.
  on(list, "click", (event) => {
    if (self.element.hidden || event.target.closest("button, input")) return;
    event.preventDefault();
    event.target.closest("li")?.querySelector(".pick").click();
  });
  return Object.assign(self, {
    box(item) {
      const onchange = ({ target }) => (self.choose(item, target.checked), self.draw());
      return h("input.pick", { type: "checkbox", value: item.id, label: named(item), checked: self.has(item), onchange });
    },
  });
}
