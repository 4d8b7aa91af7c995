/** The selection of several characters in a list, and the actions for them. */
import { act, fill, h, menu, set, size, t } from "../core.js";
import { exportsOf, favourAll, removeAll } from "./acts.js";
import { say } from "./parts.js";

/**
 * @param {HTMLElement} list It has the class "selecting" while characters are selected.
 * @param {Function} shown Returns the characters that are visible.
 * @returns {{toggle, bar, box, prune}} `toggle` is the button that begins and ends; `bar` has the
 *   actions; `box(item)` is a checkbox; `prune(items)` forgets characters that no longer exist.
 */
export function selection(list, shown) {
  const chosen = new Map();
  const boxes = new Map();
  const count = h("p.figure.grow", { role: "status" });
  const arriving = h("small.figure");
  const told = (bytes) => fill(arriving, bytes && size(bytes));
  const draw = () => {
    fill(count, say("chosen", { count: chosen.size }));
    for (const button of needy) button.disabled = !chosen.size;
  };
  const choose = (item, is) => {
    if (is) chosen.set(item.id, item);
    else chosen.delete(item.id);
    const box = boxes.get(item.id);
    if (box) box.checked = is;
  };
  const all = () => {
    const items = shown();
    const is = !items.every(({ id }) => chosen.has(id));
    for (const item of items) choose(item, is);
    draw();
  };
  const end = () => {
    for (const item of [...chosen.values()]) choose(item, false);
    list.classList.remove("selecting");
    const isInside = bar.contains(document.activeElement) || document.activeElement.matches(".pick");
    bar.hidden = true;
    if (isInside) toggle.focus();
    set(toggle, { "aria-pressed": "false" });
    draw();
  };
  const begin = () => {
    list.classList.add("selecting");
    bar.hidden = false;
    set(toggle, { "aria-pressed": "true" });
    draw();
  };
  const toggle = act("check", say("select"), () => (bar.hidden ? begin() : end()));
  const save = act("download", t("common.export"), ({ currentTarget }) =>
    menu(currentTarget, exportsOf(() => [...chosen.keys()], told)));
  const mark = act("star", say("favourite_make"), () => favourAll([...chosen.values()]));
  const remove = act("delete", t("common.delete"), () => {
    const items = [...chosen.values()];
    end();
    removeAll(items);
  }, "danger");
  const needy = [save, mark, remove];
  const bar = h("div.row.card.selection", { role: "group", "aria-label": say("selection"), hidden: true },
    count, arriving, act("check", say("select_all"), all), needy, act("close", t("common.done"), end));
  set(toggle, { "aria-pressed": "false" });
  for (const each of [toggle, bar, list]) each.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !bar.hidden) end();
  });
  // While characters are selected, a click anywhere on one selects it.
  list.addEventListener("click", (event) => {
    if (bar.hidden || event.target.closest("button, input")) return;
    event.preventDefault();
    event.target.closest("li")?.querySelector(".pick").click();
  });
  return {
    toggle,
    bar,
    box(item) {
      const onchange = ({ target }) => (choose(item, target.checked), draw());
      const box = h("input.pick", { type: "checkbox", "aria-label": say("select_one", item), checked: chosen.has(item.id), onchange });
      boxes.set(item.id, box);
      return box;
    },
    prune(items) {
      const ids = new Set(items.map(({ id }) => id));
      for (const id of [...chosen.keys()]) if (!ids.has(id)) chosen.delete(id);
      draw();
    },
  };
}
