/** The scrolling list of messages: a part of the path that grows while the user scrolls. */
import { h, icon, on, pause, t } from "../core.js";
import { drawn } from "./message.js";

const AHEAD = 20; // minimum number of rendered messages before and after the visible ones
const BEHIND = 50; // and the maximum
const FIRST = 10; // messages before and after the first one that are rendered at once
const BATCH = 4; // messages added to one side in a frame
const MARGIN = 24; // pixels above a message after a jump to it
const RETRY = 2_000;

const END = { at: Infinity };
/** True if the browser keeps the reader's place when something above it changes its height. */
const keepsPlace = CSS.supports("overflow-anchor", "auto");

/**
 * @returns {{element, show}} `show(position, { mark })` jumps to a message. `show()` jumps to the
 *   end and stays there.
 */
export function scroller(room) {
  const { path, signal } = room;
  const items = [];
  let first = 0; // position of items[0]
  let pin = END; // the message that stays `offset` pixels below the top until the user scrolls
  let [top, bottom] = [0, 0]; // positions in view
  let [seen, tall, frame, loading] = [0, 0, 0, null];

  const track = h("div.track", { role: "feed", hidden: true, label: t("chat.messages") });
  const nothing = h("p.empty", t("chat.empty"));
  const log = h("div.log", { tabindex: 0, role: "region", label: t("chat.log") }, nothing, track);
  const below = h("span");
  const jump = h("button.jump", { onclick: () => show() }, icon("down"), below);

  const end = () => first + items.length;
  const isAtEnd = () => end() === path.total && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;

  /** Return the position of the first message that ends below a height. */
  function find(y) {
    let [low, high] = [0, Math.max(0, items.length - 1)];
    while (low < high) {
      const middle = (low + high) >> 1;
      const { offsetTop, offsetHeight } = items[middle].element;
      if (offsetTop + offsetHeight > y) high = middle;
      else low = middle + 1;
    }
    return first + low;
  }

  function make(position) {
    const message = path.at(position);
    const item = { ...drawn(message, room), message };
    item.element.position = position;
    item.element.ariaPosInSet = position + 1;
    return item;
  }

  function drop({ element }) {
    // A keyboard user continues here, not at the top of the page.
    if (element.contains(document.activeElement)) log.focus({ preventScroll: true });
    element.remove();
  }
  const dropFirst = () => drop(items.shift(), first++);
  const dropLast = () => drop(items.pop());

  /** Add loaded messages on both sides, up to `limit` each; true if there are more. */
  function grow(from, to, limit = BATCH) {
    const hasAbove = () => first > from && path.at(first - 1);
    const hasBelow = () => end() < to && path.at(end());
    for (let count = 0; count < limit && hasAbove(); count++) {
      items.unshift(make(--first));
      track.prepend(items[0].element);
    }
    for (let count = 0; count < limit && hasBelow(); count++) {
      items.push(make(end()));
      track.append(items.at(-1).element);
    }
    return hasAbove() || hasBelow();
  }

  /** Begin at a position, unless it is near the rendered messages. */
  function open(position) {
    if (position + AHEAD < first || position - AHEAD > end()) while (items.length) dropLast();
    if (!items.length) first = position;
    grow(position - FIRST, position + FIRST + 1, Infinity);
  }

  /** Update messages from the path, and remove those that left it. */
  function refresh() {
    while (items.length && end() > path.total) dropLast();
    const at = Math.max(first, Math.min(pin ? pin.at : top, end() - 1));
    let [from, to] = [at, at];
    while (to < end() && path.at(to)) to++;
    while (from > first && path.at(from - 1)) from--;
    while (items.length && end() > to) dropLast();
    while (items.length && first < from) dropFirst();
    items.forEach((item, place) => {
      const message = path.at(first + place);
      if (item.message !== message) item.update(message);
      item.message = message;
    });
    if (!items.length && path.total) open(Math.min(pin ? pin.at : top, path.total - 1));
  }

  /** Remove messages far from those in view, except one that is being edited. */
  function trim() {
    const isFree = (place) => !items.at(place).element.matches(".edited");
    while (top - first > BEHIND && isFree(0)) dropFirst();
    while (end() - bottom > BEHIND && isFree(-1)) dropLast();
  }

  /** Move the pinned message back to its place. */
  function hold() {
    const element = items[pin?.at - first]?.element;
    if (pin === END) log.scrollTop = log.scrollHeight;
    else if (element) log.scrollTop = element.offsetTop - pin.offset;
    else return;
    seen = log.scrollTop;
    tall = log.scrollHeight;
  }

  const fix = (position) => ({ at: position, offset: items[position - first].element.offsetTop - log.scrollTop });

  /** Unpin the message if the user scrolled away from it. */
  function look() {
    const by = log.scrollTop - seen;
    if (Math.abs(by) <= 1 || !items.length) return;
    // The browser scrolled, not the user: the messages became shorter, as in a wider window.
    if (pin === END && log.scrollHeight < tall) return;
    seen += by;
    if (isAtEnd()) pin = END;
    else if (by < 0 || pin !== END) pin = keepsPlace ? null : fix(find(seen));
  }

  function layout() {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!log.clientHeight) return;
    look();
    const { total } = path;
    if (nothing.hidden !== total > 0) nothing.hidden = !(track.hidden = !total);
    refresh();
    hold();
    [top, bottom] = [find(log.scrollTop), find(log.scrollTop + log.clientHeight - MARGIN)];
    jump.hidden = pin === END || isAtEnd();
    // At the top, browsers do not keep the scroll position when content is added.
    if (!pin && !log.scrollTop && first > 0) pin = fix(top);
    const [from, to] = [top - AHEAD, bottom + AHEAD + 1];
    if (grow(from, to)) soon();
    trim();
    const last = end() === total ? items.findLastIndex(({ message }) => !message.removed) : -1;
    for (const { element } of items) {
      element.classList.toggle("last", element.position === first + last && last >= 0);
      if (element.ariaSetSize !== `${total}`) element.ariaSetSize = total;
    }
    hold();
    const count = total - 1 - bottom;
    const text = count > 0 ? t("chat.below", { count }) : t("chat.to_end");
    if (below.textContent !== text) below.textContent = text;
    loading ??= path.load(from, to)
      .catch(() => pause(RETRY, signal).then(soon))
      .finally(() => (loading = null));
  }
  const soon = () => (frame ||= requestAnimationFrame(layout));

  const sizes = new ResizeObserver(() => {
    hold();
    soon();
  });
  sizes.observe(log);
  sizes.observe(track);
  on(signal, "abort", () => sizes.disconnect());
  on(path, "change", soon);
  on(room.events, "selection", () => {
    for (const { update, message } of items) update(message);
  });

  log.addEventListener("scroll", soon, { passive: true });
  on(log, "keydown", (event) => {
    const go = { Home: () => show(0), End: () => show() }[event.key];
    if (!go || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    go();
  });

  async function show(place = Infinity, { mark } = {}) {
    const position = Math.max(0, Math.floor(place));
    await path.load(Math.min(position, path.total) - AHEAD, position + AHEAD + 1);
    if (!log.clientHeight) await new Promise(requestAnimationFrame);
    pin = position < path.total ? { at: position, offset: MARGIN } : END;
    if (path.total) open(Math.min(position, path.total - 1));
    seen = log.scrollTop; // the user did not cause this scroll position
    layout();
    const element = mark && items[position - first]?.element;
    if (!element) return;
    element.focus({ preventScroll: true });
    element.classList.add("marked");
    setTimeout(() => element.classList.remove("marked"), 2500);
  }

  return { element: h("div.reading", log, jump), show };
}
