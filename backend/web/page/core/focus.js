/** Keeps the focus near its place when the element that has it is removed or hidden. */
import { on } from "./dom.js";

const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]";
const HEADINGS = "h1, h2, h3";

/** The element that was focused or clicked last. */
let last = null;

/** Elements that get the focus back later, such as when a dialog is closed. */
const held = new Set();

/** Remember an element. Returns a function that returns it, or the one in its place. */
export function hold(element) {
  const place = { element };
  held.add(place);
  return () => {
    held.delete(place);
    return place.element;
  };
}

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
  for (let first = place; box?.matches && !box.matches("main, dialog, body"); first = 0) {
    const test = (each) => controlIn(each, first);
    const found = among(next, "nextSibling", test) ?? among(previous, "previousSibling", test);
    if (found) return found;
    [next, previous, box] = [box.nextSibling, box.previousSibling, box.parentNode];
  }
  return box?.matches?.("main, dialog") ? box : document.querySelector("main");
}

const nameOf = (control) => [control.tagName, control.name, control.ariaLabel, control.textContent].join();

/** Return the element that gets the focus of a removed one, which was in `removedNodes[at]`. */
function heirOf(element, { target, removedNodes, addedNodes, nextSibling, previousSibling }, at, records) {
  // The same control may have been drawn again, unless it was one of several with the same name.
  const alike = (each) => nameOf(each) === nameOf(element);
  const several = [...removedNodes].flatMap((each) => (each.matches ? [...each.querySelectorAll(CONTROLS)] : [])).filter(alike)[1];
  const same = several ? [] : find(target, CONTROLS).filter(alike);
  if (same.length === 1 && records.some((each) => [...each.addedNodes].some((node) => node.contains(same[0])))) return same[0];
  const box = removedNodes[at];
  const place = box.matches?.(CONTROLS) ? 0 : [...box.querySelectorAll(CONTROLS)].indexOf(element);
  const next = addedNodes[Math.min(at, addedNodes.length - 1)] ?? nextSibling;
  return nearest(target, next, next?.previousSibling ?? previousSibling, place);
}

/** Return the record that took the element out of the document, and its place there. */
function removalOf(records, element) {
  let [node, found] = [element, null];
  for (const each of records) {
    const at = [...each.removedNodes].findIndex((other) => other.contains(node));
    if (at < 0) continue;
    found = [each, at];
    if (each.target.isConnected) break;
    // What it was in has been removed as well.
    node = each.target;
  }
  return found;
}

function mend(records) {
  for (const place of held) {
    const removed = !place.element.isConnected && removalOf(records, place.element);
    if (removed) place.element = heirOf(place.element, ...removed, records);
  }
  const isFocused = document.activeElement !== document.body;
  if (!last || (isFocused && !records.some((each) => each.attributeName))) return;
  const removed = removalOf(records, last);
  // What was only touched, as while scrolling, did not take the focus from another element.
  const isIn = (box) => box.contains(last) && (!isFocused || box.contains(document.activeElement));
  const hidden = records.find(({ attributeName, target }) => attributeName === "hidden" && target.hidden && isIn(target));
  // It was moved, or a control is enabled again.
  const isBack = !isFocused && last.isConnected && (removed || records.some(({ target }) => target === last));
  const heir = isBack ? last
    : removed && !isFocused ? heirOf(last, ...removed, records)
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
