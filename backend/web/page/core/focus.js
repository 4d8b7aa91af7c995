/** Keeps the focus near its place when the element that has it is removed or hidden. */
import { on } from "./dom.js";

const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]";
const HEADINGS = "h1, h2, h3";

/** The element that was focused or clicked last. */
let last = null;

/** The visible elements that match, in an element and itself. */
const find = (box, selector) =>
  [box, ...box.querySelectorAll(selector)].filter((each) => each.matches(selector) && !each.disabled && each.checkVisibility());

/** The control of an element at a place among them, else the first one, else a heading. */
function controlIn(box, place = 0) {
  const controls = find(box, CONTROLS);
  return controls[place] ?? controls[0] ?? find(box, HEADINGS)[0];
}

/** Return the first result of `test` for an element and its siblings in one direction. */
function among(node, way, test) {
  for (let found; node; node = node[way]) if (node.matches && (found = test(node))) return found;
}

/** The control nearest to a place in `box`: after it, before it, then around the box. */
function nearest(box, next, previous, place) {
  for (let first = place; !box.matches("main, dialog, body"); first = 0) {
    const test = (each) => controlIn(each, first);
    const found = among(next, "nextSibling", test) ?? among(previous, "previousSibling", test);
    if (found) return found;
    [next, previous, box] = [box.nextSibling, box.previousSibling, box.parentNode];
  }
  return box.matches("body") ? document.querySelector("main") : box;
}

/** Return the element that gets the focus of a removed one. */
function heirOf({ target, removedNodes, addedNodes, nextSibling, previousSibling }) {
  // The same control may have been drawn again.
  const same = find(target, CONTROLS).filter((each) => each.isEqualNode(last));
  if (same.length === 1) return same[0];
  const at = [...removedNodes].findIndex((each) => each.contains(last));
  const box = removedNodes[at];
  const place = box.matches(CONTROLS) ? 0 : [...box.querySelectorAll(CONTROLS)].indexOf(last);
  const next = addedNodes[Math.min(at, addedNodes.length - 1)] ?? nextSibling;
  return nearest(target, next, next?.previousSibling ?? previousSibling, place);
}

function mend(records) {
  const isFocused = document.activeElement !== document.body;
  if (!last || (isFocused && !records.some((each) => each.attributeName))) return;
  const removed = records.find((each) => [...each.removedNodes].some((node) => node.contains(last)));
  const hidden = records.find(({ attributeName, target }) => attributeName === "hidden" && target.hidden && target.contains(last));
  // It was moved, or a control is enabled again.
  const isBack = !isFocused && last.isConnected && (removed || records.some(({ target }) => target === last));
  const heir = isBack ? last
    : removed && !isFocused ? heirOf(removed)
      : hidden && nearest(hidden.target.parentNode, hidden.target.nextSibling, hidden.target.previousSibling, 0);
  if (!heir) return;
  if (heir.matches(HEADINGS)) heir.tabIndex = -1;
  heir.focus({ preventScroll: true });
}

/**
 * Move the focus to the next item when an item is removed that has it: else to the one before it, or
 * to the nearest control or heading. Views that move the focus themselves are not disturbed.
 */
export function keepFocus() {
  on(window, "focusin", ({ target }) => (last = target));
  // A click beside all controls takes the focus away on purpose.
  addEventListener("pointerdown", ({ target }) => (last = target.closest(CONTROLS)), { capture: true });
  new MutationObserver(mend).observe(document, { childList: true, subtree: true, attributeFilter: ["hidden", "disabled"] });
}
