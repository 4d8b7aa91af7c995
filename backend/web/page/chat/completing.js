/** The list of completions of a text field, chosen with Tab, the arrow keys, or a click. */
import { fill, h, set, t } from "../core.js";

let ids = 0;

/**
 * @param {HTMLTextAreaElement} area
 * @param {function} find Returns the completions of a line: `[label, line, help]`.
 * @param {function} write Gets the chosen line.
 * @returns {{element, update, key}} `update()` shows the completions of the field's text.
 *   `key(event)` is true if the key belongs to the list.
 */
export function completing(area, find, write) {
  const id = `completions-${++ids}`;
  let offered = [];
  let at = -1;
  const element = h("ul.completions", { id, role: "listbox", label: t("command.completions"), hidden: true });
  set(area, { "aria-autocomplete": "list", "aria-controls": id, onblur: () => show([]) });

  const mark = (place) => {
    at = place;
    [...element.children].forEach((each, index) => (each.ariaSelected = String(index === at)));
    set(area, { "aria-activedescendant": at < 0 ? null : `${id}-${at}` });
    element.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const show = (found) => {
    offered = found;
    element.hidden = !offered.length;
    fill(element, offered.map(([label, line, help], index) => {
      // The focus stays in the field.
      const onpointerdown = (event) => event.preventDefault();
      return h("li", { id: `${id}-${index}`, role: "option", onpointerdown, onclick: () => write(line) },
        h("b", label), help && h("small.soft", help));
    }));
    mark(-1);
  };
  const keys = {
    ArrowDown: () => mark((at + 1) % offered.length),
    ArrowUp: () => mark((at <= 0 ? offered.length : at) - 1),
    Tab: () => write(offered[Math.max(at, 0)][1]),
    Escape: () => show([]),
    // Enter sends the line, unless a completion was chosen.
    Enter: () => at >= 0 && write(offered[at][1]),
  };
  return {
    element,
    update: () => show(find(area.value)),
    key(event) {
      const does = !event.isComposing && !event.shiftKey && offered.length && keys[event.key];
      if (!does || does() === false) return false;
      event.preventDefault();
      return true;
    },
  };
}
