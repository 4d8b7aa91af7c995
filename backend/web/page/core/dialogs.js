/** What lies over the page: messages that pass, questions, menus; and acts that can be undone. */
import { act, fill, h, icon, set } from "./dom.js";
import { has, t } from "./words.js";

const shelf = h("div.toasts", { role: "status", "aria-live": "polite" });
document.body.append(shelf);

/** Where the shelf can be seen and used: in what lies on top. */
function shelve() {
  const top = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (shelf.parentNode !== top) top.append(shelf);
}

/**
 * Show a message for some seconds.
 *
 * @param {string} text
 * @param {object} [options] `action`, a label, and `onaction`; `kind`: "error" stays longer;
 *   `seconds`; `onover`, once it has passed without the action.
 * @returns a function that has it pass at once.
 */
export function toast(text, { action, onaction, kind = "", seconds, onover } = {}) {
  const isError = kind === "error";
  let timer;
  let isOver = false;
  const close = (then) => {
    clearTimeout(timer);
    if (isOver) return;
    isOver = true;
    item.remove();
    then?.();
  };
  const pass = () => close(onover);
  const wait = () => clearTimeout(timer);
  const start = () => {
    wait();
    timer = setTimeout(pass, (seconds ?? (isError ? 12 : 6)) * 1000);
  };
  // Whoever reads or reaches for it has the time that it takes.
  const patience = { onpointerenter: wait, onfocusin: wait, onpointerleave: start, onfocusout: start };
  const item = h("div.toast", { class: kind, role: isError ? "alert" : null, ...patience },
    h("span", {}, text),
    action && h("button.quiet", { onclick: () => close(onaction) }, action),
    act("close", t("common.dismiss"), pass, "quiet"));
  shelve();
  shelf.append(item);
  start();
  return pass;
}

/** What an error says, and what can be done about it. One of our own making goes to the console. */
export function explain(problem) {
  if (!problem.body) {
    console.error(problem);
    return t("errors.page");
  }
  const own = `problems.${problem.slug}`;
  if (has(own)) return t(own, problem.body);
  const title = problem.title ?? t("errors.strange");
  const detail = problem.body?.detail;
  return detail && detail !== title ? `${title}. ${detail}` : title;
}

/** Tell of an error; not of what was given up because its view was left. */
export function complain(error) {
  if (error.name !== "AbortError") toast(explain(error), { kind: "error" });
}

/** Do something, and tell of it where it fails; its result, or undefined. */
export async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    complain(error);
    return undefined;
  }
}

const waiting = new Set();
addEventListener("pagehide", () => waiting.forEach((finish) => finish()));

/**
 * Do something that can be taken back for some seconds: `hide` at once, `act` when nobody took it
 * back (with `{ keepalive: true }`, for the page may be on its way out), `show` where somebody did
 * or it failed.
 */
export function undoable(text, { hide, act, show }) {
  hide();
  const finish = toast(text, {
    action: t("common.undo"),
    seconds: 8,
    onaction: () => (waiting.delete(finish), show()),
    onover: async () => {
      waiting.delete(finish);
      try {
        await act({ keepalive: true });
      } catch (error) {
        show();
        complain(error);
      }
    },
  });
  waiting.add(finish);
}

/**
 * A dialog. `build(close)` gives its content; `close(value)` ends it; the promise has the value,
 * undefined where it was dismissed.
 */
export function dialog(title, build, { wide = false } = {}) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    let result;
    const close = (value) => {
      result = value;
      box.close();
    };
    const dismiss = () => box.close();
    const onclose = () => {
      removeEventListener("hashchange", dismiss);
      shelve();
      box.remove();
      (before?.isConnected ? before : document.querySelector("main"))?.focus();
      resolve(result);
    };
    // What a key does on the page, it does not do behind a dialog.
    const onkeydown = (event) => event.stopPropagation();
    const box = h("dialog", { "aria-label": title, class: wide ? "wide" : "", onclose, onkeydown });
    addEventListener("hashchange", dismiss);
    fill(box, h("header", {}, h("h2", {}, title), act("close", t("common.close"), dismiss, "quiet")), build(close));
    // A press beside it must not cost what was typed.
    set(box, { closedby: box.querySelector("form") ? "closerequest" : "any" });
    document.body.append(box);
    box.showModal();
    shelve();
    (box.querySelector("[autofocus]") ?? box.querySelector("input, textarea, select"))?.focus();
  });
}

/** Ask whether to do what can't be undone. */
export function sure(title, text, action) {
  return dialog(title, (close) =>
    h("div.stack", {},
      h("p", {}, text),
      h("footer", {},
        h("button", { onclick: () => close(false), autofocus: true }, t("common.cancel")),
        h("button.danger", { onclick: () => close(true) }, action))));
}

/**
 * Open a menu at a button: arrow keys, Escape, and a press beside it close it as expected.
 *
 * @param {HTMLElement} anchor
 * @param {Array} items `{ label, icon, act, danger, checked }`; null draws a line.
 */
export function menu(anchor, items) {
  const box = h("div.menu", { role: "menu", popover: "auto" });
  const entry = ({ label, icon: sign, act: does, danger, checked }) => {
    const onclick = () => (box.hidePopover(), anchor.focus(), does());
    const radio = checked !== undefined && { role: "menuitemradio", "aria-checked": String(checked) };
    const attributes = { role: "menuitem", ...radio, class: danger ? "danger" : "", onclick };
    return h("button", attributes, sign && icon(sign), label);
  };
  fill(box, items.map((item) => (item ? entry(item) : h("hr"))));
  box.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...box.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    buttons[(at + step + buttons.length) % buttons.length].focus();
  });
  box.addEventListener("toggle", (event) => {
    anchor.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState === "closed") box.remove();
  });
  anchor.setAttribute("aria-haspopup", "menu");
  document.body.append(box);
  box.showPopover();
  const at = anchor.getBoundingClientRect();
  const size = box.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, innerWidth - size.width - 8));
  const below = at.bottom + 4 + size.height < innerHeight;
  const top = below ? at.bottom + 4 : Math.max(8, at.top - size.height - 4);
  Object.assign(box.style, { left: `${left}px`, top: `${top}px` });
  box.querySelector("button").focus();
}
