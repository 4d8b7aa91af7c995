/** Messages that scroll: only those near what is seen are elements, whatever a chat's length. */
import { h, icon } from "../core/dom.js";
import { t } from "../core/words.js";
import { drawn } from "./message.js";

const BEYOND = 900;
const AHEAD = 15;
const MARGIN = 24;

/**
 * Heights are guessed until they were measured. Where one turns out different, the message at the
 * top of what is seen (the anchor) stays where it is, and all else moves around it.
 *
 * @returns {{element, show}} `show(position, { mark })` goes anywhere at once; `show()` goes to the
 *   end, and stays there.
 */
export function scroller(room) {
  const { path, signal } = room;
  const items = new Map(); // by position
  const heights = [];
  let guess = 150;
  let measured = 0;
  let [anchor, offset] = [0, 0];
  let stuck = true;
  let [seen, view, width, frame, loading] = [0, 0, 0, 0, 0];
  let near;

  const track = h("div.track", { role: "feed", "aria-label": t("chat.messages") });
  const nothing = h("p.empty", {}, t("chat.empty"));
  const log = h("div.log", { tabindex: 0, role: "region", "aria-label": t("chat.log") }, nothing, track);
  const below = h("span");
  const jump = h("button.jump", { onclick: () => show() }, icon("down"), below);

  const height = (position) => heights[position] || guess;
  const above = (position) => {
    let sum = 0;
    for (let each = 0; each < position; each++) sum += height(each);
    return sum;
  };
  /** The first message that ends below a height, and where it begins. */
  const find = (y) => {
    let [position, top] = [0, 0];
    while (position < path.total - 1 && top + height(position) <= y) top += height(position++);
    return [position, top];
  };

  function place(position, top) {
    const { total } = path;
    let item = items.get(position);
    const message = path.at(position) ?? item?.message;
    if (item && !item.message !== !message) item = drop(position);
    if (!item) {
      item = message ? drawn(message, room) : { element: h("article.blank", { "aria-busy": "true" }) };
      items.set(position, item);
      item.element.position = position;
      item.element.ariaPosInSet = position + 1;
      track.insertBefore(item.element, [...track.children].find((each) => each.position > position) ?? null);
      if (message) sizes.observe(item.element);
    } else if (item.message !== message) item.update(message);
    item.message = message;
    item.element.style.top = `${top}px`;
    item.element.classList.toggle("last", position === total - 1);
    item.element.ariaSetSize = total;
  }

  function drop(position) {
    const { element } = items.get(position);
    // Who reads by keyboard goes on from here, not from the top of the page.
    if (element.contains(document.activeElement)) log.focus({ preventScroll: true });
    sizes.unobserve(element);
    element.remove();
    items.delete(position);
  }

  function layout() {
    cancelAnimationFrame(frame);
    frame = 0;
    const before = log.scrollTop;
    if (before !== seen) look(before);
    view = log.clientHeight;
    if (!view) return;
    const { total } = path;
    nothing.hidden = total > 0;
    track.hidden = !total;
    while (heights.length < total) heights.push(0);
    const whole = above(total);
    track.style.height = `${whole}px`;
    const most = Math.max(0, whole - view + 2 * MARGIN);
    seen = stuck ? most : Math.max(0, Math.min(most, above(anchor) - offset));
    let [position, y] = find(seen - BEYOND);
    const first = position;
    for (; position < total && y < seen + view + BEYOND; y += height(position++)) place(position, y);
    for (const [each, { element }] of items) {
      if (each >= first && each < position) continue;
      // What is being written out of sight stays.
      if (each < total && element.querySelector("textarea")) place(each, above(each));
      else drop(each);
    }
    // To read it back costs a layout of the whole page: most frames do without.
    if (Math.abs(before - seen) > 0.9) {
      log.scrollTop = seen;
      seen = log.scrollTop;
    } else seen = before;
    jump.hidden = stuck;
    near = [first - AHEAD, position + AHEAD];
    loading ||= setTimeout(around, 60);
  }
  const soon = () => (frame ||= requestAnimationFrame(layout));

  /** Read what is near, and say how much is below. */
  function around() {
    loading = 0;
    path.load(...near).catch(() => setTimeout(soon, 2000));
    const count = path.total - 1 - find(seen + view - MARGIN)[0];
    below.textContent = count > 0 ? t("chat.below", { count }) : t("chat.to_end");
  }

  const sizes = new ResizeObserver((entries) => {
    for (const { target, borderBoxSize } of entries) {
      const size = borderBoxSize[0].blockSize;
      if (target === log) {
        if (log.clientWidth !== width) heights.fill(0);
        width = log.clientWidth;
      } else if (target.isConnected) {
        if (!heights[target.position]) guess += (size - guess) / ++measured;
        heights[target.position] = size;
      }
    }
    layout();
  });
  sizes.observe(log);

  /** See where one is. */
  function look(now) {
    if (now + log.clientHeight >= log.scrollHeight - 4) stuck = true;
    // It also moves when the place for it changes: nobody scrolled then.
    else if (now < seen - 1 && log.clientHeight === view) stuck = false;
    seen = now;
    [anchor, offset] = find(seen - MARGIN);
    offset -= seen;
  }
  log.addEventListener("scroll", soon, { passive: true });
  log.addEventListener("keydown", (event) => {
    const go = { Home: () => show(0), End: () => show() }[event.key];
    if (!go || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    go();
  });
  path.addEventListener("change", soon);
  signal.addEventListener("abort", () => sizes.disconnect());

  async function show(position = Infinity, { mark } = {}) {
    await path.load(position - AHEAD, position + AHEAD);
    if (!log.clientHeight) await new Promise(requestAnimationFrame);
    stuck = position >= path.total;
    seen = log.scrollTop;
    [anchor, offset] = [position, MARGIN];
    layout();
    const element = mark && items.get(position)?.element;
    if (!element) return;
    element.focus({ preventScroll: true });
    element.classList.add("marked");
    setTimeout(() => element.classList.remove("marked"), 2500);
  }

  return { element: h("div.reading", {}, log, jump), show };
}
