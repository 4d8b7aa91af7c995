/** Toasts, dialogs, menus, and actions that can be undone. */
import { act, fill, h, icon, set } from "./dom.js";
import { has, t } from "./words.js";

const shelf = h("div.toasts", { role: "status", "aria-live": "polite" });
document.body.append(shelf);

/** Move the toasts into the topmost dialog, where they can be seen and used. */
function shelve() {
  const top = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (shelf.parentNode !== top) top.append(shelf);
}

/** Functions that close the toasts. All toasts close with the page. */
const shown = new Set();
/** The time in which an action can be undone. */
export const UNDO_SECONDS = 10;
addEventListener("pagehide", () => shown.forEach((pass) => pass()));

/**
 * Show a toast for some seconds.
 *
 * @param {string|Array} text A text, or elements.
 * @param {object} [options] `action` (a label) and `onaction`; `kind` ("error" stays longer);
 *   `seconds`; `onover`, called when it closes without the action.
 * @returns {Function} Closes the toast without the action, and returns the result of `onover`.
 */
export function toast(text, { action, onaction, kind = "", seconds = kind ? 12 : 6, onover } = {}) {
  let timer;
  const wait = () => clearTimeout(timer);
  const close = (then) => {
    wait();
    if (!shown.delete(pass)) return;
    item.remove();
    return then?.();
  };
  const pass = () => close(onover);
  const start = () => {
    wait();
    timer = setTimeout(pass, seconds * 1000);
  };
  // A toast stays open while the pointer or the focus is on it.
  const patience = { onpointerenter: wait, onfocusin: wait, onpointerleave: start, onfocusout: start };
  const item = h("div.toast", { class: kind, role: kind ? "alert" : null, ...patience },
    h("div", text),
    action && h("button.quiet", { onclick: () => close(onaction) }, action),
    act("close", t("common.dismiss"), pass, "quiet"));
  shelve();
  shelf.append(item);
  shown.add(pass);
  start();
  return pass;
}

/** Return the text of an error and its remedy. Logs unexpected errors to the console. */
export function explain(problem) {
  if (!problem.body) {
    console.error(problem);
    return t("errors.page");
  }
  const own = `problems.${problem.slug}`;
  return has(own) ? t(own, problem.body) : sentences(problem.body);
}

/** The title and the detail of a problem, in one text. */
const sentences = ({ title = t("errors.strange"), detail }) =>
  detail && detail !== title ? `${title}. ${detail}` : title;

/** A quotation of the provider's own message, if there is one. */
const quotation = ({ provider_message: words } = {}) =>
  words && h("blockquote.words", h("small", t("errors.provider_says")), " ", h("q", words));

/** Elements for an error: its text, and the provider's own message if there is one. */
export const explained = (problem) => [h("span", explain(problem)), quotation(problem.body)];

/** The same for a problem that is part of another response. */
export const told = (problem) => [h("span", sentences(problem)), quotation(problem)];

/** Errors that the user can fix in the settings of a provider. */
const AT_PROVIDER = new Set([
  "model-foreign-answer", "model-key-refused", "model-no-credit", "model-not-found", "model-redirect",
  "model-unavailable", "model-web-page", "model-wrong-address", "provider-address-refused",
]);

/** Errors that the user can fix by choosing another model. */
const AT_SETTINGS = new Set(["model-writes-no-json", "unknown-model"]);

/** A link to the page where the error can be fixed, if there is one. */
export const remedy = ({ slug }) =>
  AT_PROVIDER.has(slug) ? h("a.button", { href: "#/providers" }, t("models.open_settings"))
    : AT_SETTINGS.has(slug) && h("a.button", { href: "#/settings" }, t("settings.open"));

/** Show an error. Ignores aborted requests. */
export function complain(error) {
  if (error.name !== "AbortError") toast([explained(error), remedy(error)], { kind: "error" });
}

/** Run `act` and show its error, if any. Returns its result, or undefined. */
export async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    complain(error);
  }
}

/** Actions that can still be undone, with the promise of those that have begun. */
const waiting = new Map();

/**
 * Run an action that can be undone for some seconds.
 * `hide` runs at once. `act` runs unless the user undoes it, with `{ keepalive: true }` because the
 * page may be closing. `show` runs after an undo or an error.
 */
export function undoable(text, { hide, act, show }) {
  hide();
  const run = async () => {
    try {
      await act({ keepalive: true });
    } catch (error) {
      show();
      complain(error);
    }
    waiting.delete(end);
  };
  const undo = () => {
    waiting.delete(end);
    show();
  };
  const begin = () => {
    const done = run();
    waiting.set(end, done);
    return done;
  };
  const end = toast(text, { action: t("common.undo"), seconds: UNDO_SECONDS, onaction: undo, onover: begin });
  waiting.set(end, null);
}

/** Run the actions that can still be undone now, because the next request depends on them. */
export const commit = () => Promise.all([...waiting].map(([end, done]) => done ?? end()));

/**
 * Open a dialog. `build(close)` returns its content, `close(value)` closes it.
 * The promise resolves to the value, or to undefined if the dialog was dismissed.
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
    // Keyboard shortcuts of the page do not apply behind a dialog.
    const onkeydown = (event) => event.stopPropagation();
    const box = h("dialog", { "aria-label": title, class: wide ? "wide" : "", onclose, onkeydown });
    addEventListener("hashchange", dismiss);
    fill(box, h("header", h("h2", title), act("close", t("common.close"), dismiss, "quiet")), build(close));
    // A click beside a form must not discard the input.
    set(box, { closedby: box.querySelector("form") ? "closerequest" : "any" });
    document.body.append(box);
    box.showModal();
    shelve();
    (box.querySelector("[autofocus]") ?? box.querySelector("input, textarea, select"))?.focus();
  });
}

/**
 * Open a menu at a button. Arrow keys, Escape and a click beside it work as usual.
 *
 * @param {HTMLElement} anchor
 * @param {Array} items `{ label, icon, act, danger }`; null draws a line.
 */
export function menu(anchor, items) {
  const box = h("div.menu", { role: "menu", popover: "auto" });
  const entry = ({ label, icon: sign, act: does, danger }) => {
    const onclick = () => (box.hidePopover(), anchor.focus(), does());
    return h("button", { role: "menuitem", class: danger ? "danger" : "", onclick }, sign && icon(sign), label);
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
    anchor.ariaExpanded = event.newState === "open";
    if (event.newState === "closed") box.remove();
  });
  anchor.ariaHasPopup = "menu";
  document.body.append(box);
  box.showPopover({ source: anchor });
  box.querySelector("button").focus();
}

/** The menu item that deletes the object of the menu. */
export const deleting = (does) =>
  ({ label: t("common.delete"), icon: "delete", danger: true, act: does });

/** A button that opens a menu with these items. */
export const more = (label, items) =>
  act("more", label, ({ currentTarget }) => menu(currentTarget, items), "quiet");
