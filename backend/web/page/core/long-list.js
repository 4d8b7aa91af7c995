/** Long lists: the document contains only the rows near those in view. */
import { h, on, set } from "./dom.js";

/** The height of a row, in pixels, until one is measured. */
const GUESS = 150;

/**
 * Show items in `list`, which has one column or is a grid. Spaces take the place of the rows that
 * are far away. Screen readers get the position of each item, and their number.
 *
 * @param {Function} make Returns the element of an item. An item has an `id`.
 * @returns {{element, items, show, clear, reveal}} `show(items)` shows other items, or again those
 *   that have changed; elements of the same items stay, unless `clear()` was called before.
 *   `reveal(item)` scrolls to an item.
 */
export function longList(list, make, signal) {
  const [above, below] = [h("div.space"), h("div.space")];
  let items = [];
  let shown = new Map(); // elements in the document, by item
  const heights = new Map(); // of rows, by the id of their first item
  let [shape, usual, isMeasured, frame] = ["", GUESS, false, 0];

  /** Put the elements near those in view into the document, or those near an item. */
  function layout(target = -1) {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!above.offsetParent) return;
    const columns = getComputedStyle(list).gridTemplateColumns.split(" ").length;
    if (shape !== (shape = `${list.className} ${list.clientWidth}`)) {
      heights.clear();
      isMeasured = false;
    }
    const count = Math.ceil(items.length / columns);
    const rowOf = (at) => Math.floor(at / columns);
    const height = (row) => heights.get(items[row * columns].id) ?? usual;
    const sum = (from, to, without) => {
      let all = 0;
      for (let row = from; row < to; row++) if (row !== without) all += height(row);
      return all;
    };

    let y = target < 0 ? above.getBoundingClientRect().top : innerHeight / 2 - sum(0, rowOf(target));
    let first = 0;
    while (first < count && y + height(first) < -innerHeight) y += height(first++);
    let last = first;
    while (last < count && y < (isMeasured ? 2 : 1) * innerHeight) y += height(last++);

    // A row stays while it has the focus or an open menu.
    const busy = list.querySelector("[aria-expanded=true]") ?? document.activeElement;
    const before = [...shown];
    const was = before.findIndex(([, element]) => element.contains(busy));
    const held = items.findIndex(({ id }) => id === before[was]?.[0].id);
    const kept = rowOf(held);
    const rows = Array.from({ length: last - first }, (_, at) => first + at);
    if (kept >= last) rows.push(kept);
    else if (kept >= 0 && kept < first) rows.unshift(kept);

    const places = rows.flatMap((row) => items.slice(row * columns, (row + 1) * columns).map((_, at) => row * columns + at));
    shown = new Map(places.map((at) => [items[at], shown.get(items[at]) ?? make(items[at])]));
    const elements = [...shown.values()];
    const there = new Set(elements);
    for (const each of [...list.children]) if (!there.has(each)) each.remove();
    elements.forEach((each, at) => {
      const next = list.children[at] ?? null;
      if (next !== each) list.insertBefore(each, next);
      const [size, place] = [`${items.length}`, `${places[at] + 1}`];
      if (each.ariaSetSize !== size) each.ariaSetSize = size;
      if (each.ariaPosInSet !== place) each.ariaPosInSet = place;
    });
    set(above, { vars: { height: `${sum(0, first, kept)}px` } });
    set(below, { vars: { height: `${sum(last, count, kept)}px` } });
    if (was >= 0 && document.activeElement === document.body) {
      // After the deletion of an item, the focus moves to the next one.
      const next = shown.get(items[held]) ?? elements[Math.min(was, elements.length - 1)];
      (busy.isConnected ? busy : next?.querySelector("a, button"))?.focus({ preventScroll: true });
    }

    for (let at = 0; at + columns < elements.length; at += columns) {
      heights.set(items[places[at]].id, elements[at + columns].offsetTop - elements[at].offsetTop);
    }
    if (isMeasured || !heights.size) return;
    usual = [...heights.values()].reduce((one, other) => one + other) / heights.size;
    isMeasured = true;
    soon();
  }
  const soon = () => (frame ||= requestAnimationFrame(() => layout()));

  const sizes = new ResizeObserver(soon);
  sizes.observe(list);
  on(signal, "abort", () => sizes.disconnect());
  addEventListener("scroll", soon, { capture: true, passive: true, signal });
  on(window, "resize", soon, signal);

  return {
    element: h("div", above, list, below),
    get items() {
      return items;
    },
    show(next) {
      items = next;
      layout();
      soon();
    },
    clear: () => shown.clear(),
    reveal(item) {
      const at = items.indexOf(item);
      if (at < 0) return;
      layout(at);
      shown.get(item)?.scrollIntoView({ block: "nearest" });
    },
  };
}
