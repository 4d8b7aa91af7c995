/** What lies over the page: messages that pass, questions, menus; and acts that can be undone. */
import { fill, h, icon } from "./dom.js";
import { has, t } from "./words.js";

const shelf = h("div.toasts", { role: "status", "aria-live": "polite" });
document.body.append(shelf);

/**
 * Show a message for some seconds.
 *
 * @param {string} text
 * @param {object} [options] `action`, a label, and `onaction`; `kind`: "error" stays longer;
 *   `seconds`; `onover`, once it has passed without the action.
 */
export function toast(text, { action, onaction, kind = "", seconds, onover } = {}) {
  let timer;
  const close = (then) => {
    clearTimeout(timer);
    if (!item.isConnected) return;
    item.remove();
    then?.();
  };
  const item = h(
    "div.toast",
    { class: kind, role: kind === "error" ? "alert" : null },
    h("span", {}, text),
    action && h("button.quiet", { onclick: () => close(onaction) }, action),
    h("button.quiet", { onclick: () => close(onover), "aria-label": t("common.dismiss") }, icon("close")),
  );
  shelf.append(item);
  const start = () => {
    timer = setTimeout(() => close(onover), (seconds ?? (kind === "error" ? 12 : 6)) * 1000);
  };
  // Whoever reads or reaches for it has the time that it takes.
  item.addEventListener("pointerenter", () => clearTimeout(timer));
  item.addEventListener("focusin", () => clearTimeout(timer));
  item.addEventListener("pointerleave", start);
  item.addEventListener("focusout", start);
  start();
  return { close: () => close(), finish: () => close(onover) };
}

/** What a problem says, and what can be done about it. */
export function explain(problem) {
  const own = `problems.${problem.slug}`;
  if (has(own)) return t(own, problem.body);
  const title = problem.title ?? t("errors.strange");
  const detail = problem.body?.detail;
  return detail && detail !== title ? `${title}. ${detail}` : title;
}

/** Tell of an error. One of our own making goes to the console as well. */
export function complain(error) {
  if (error.name === "AbortError") return;
  if (!error.body) console.error(error);
  toast(error.body ? explain(error) : t("errors.page"), { kind: "error" });
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
addEventListener("pagehide", () => waiting.forEach((each) => each.finish()));

/**
 * Do something that can be taken back for some seconds: `hide` at once, `act` when nobody took it
 * back (with `{ keepalive: true }`, for the page may be on its way out), `show` where somebody did
 * or it failed.
 */
export function undoable(text, { hide, act, show }) {
  hide();
  const item = toast(text, {
    action: t("common.undo"),
    seconds: 8,
    onaction: () => (waiting.delete(item), show()),
    onover: async () => {
      waiting.delete(item);
      try {
        await act({ keepalive: true });
      } catch (error) {
        show();
        complain(error);
      }
    },
  });
  waiting.add(item);
}

/**
 * A dialog. `build(close)` gives its content; `close(value)` ends it; the promise has the value,
 * undefined where it was dismissed.
 */
export function dialog(title, build, { wide = false } = {}) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    let result;
    const box = h("dialog", { "aria-label": title, class: wide ? "wide" : "" });
    const close = (value) => {
      result = value;
      box.close();
    };
    box.addEventListener("close", () => {
      box.remove();
      before?.focus?.();
      resolve(result);
    });
    box.addEventListener("click", (event) => event.target === box && close());
    const head = h(
      "header",
      {},
      h("h2", {}, title),
      h("button.quiet", { onclick: () => close(), "aria-label": t("common.close") }, icon("close")),
    );
    fill(box, head, build(close));
    document.body.append(box);
    box.showModal();
    (box.querySelector("[autofocus]") ?? box.querySelector("input, textarea, select"))?.focus();
  });
}

/** Ask whether to do what can't be undone. */
export function sure(title, text, action) {
  return dialog(title, (close) =>
    h(
      "div.stack",
      {},
      h("p", {}, text),
      h(
        "footer",
        {},
        h("button", { onclick: () => close(false), autofocus: true }, t("common.cancel")),
        h("button.danger", { onclick: () => close(true) }, action),
      ),
    ),
  );
}

/**
 * Open a menu at a button: arrow keys, Escape, and a press beside it close it as expected.
 *
 * @param {HTMLElement} anchor
 * @param {Array} items `{ label, icon, act, danger, checked }`; null draws a line.
 */
export function menu(anchor, items) {
  const box = h("div.menu", { role: "menu", popover: "auto" });
  for (const item of items) {
    if (!item) box.append(h("hr"));
    else {
      const act = () => (box.hidePopover(), anchor.focus(), item.act());
      box.append(
        h(
          "button",
          {
            role: item.checked === undefined ? "menuitem" : "menuitemradio",
            "aria-checked": item.checked === undefined ? null : String(item.checked),
            class: item.danger ? "danger" : "",
            onclick: act,
          },
          item.icon && icon(item.icon),
          item.label,
        ),
      );
    }
  }
  box.addEventListener("keydown", (event) => {
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
  place(box, left, below ? at.bottom + 4 : Math.max(8, at.top - size.height - 4));
  box.querySelector("button").focus();
}

function place(box, left, top) {
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}
