/** Toasts, dialogs, menus, and actions that can be undone. */
import { api, sendAll } from "./api.js";
import { act, fill, h, icon, on, pause, set } from "./dom.js";
import { hold } from "./focus.js";
import { has, t } from "./words.js";

const shelf = h("div.toasts", { role: "status", "aria-live": "polite" });
document.body.append(shelf);

/** Move the toasts into the topmost dialog, where they can be seen and used. */
function shelve() {
  const top = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (shelf.parentNode !== top) top.append(shelf);
}

/** Focus an element that had the focus before, or the view if it no longer exists. */
const focus = (before) => (before?.isConnected ? before : document.querySelector("main"))?.focus();

/** Functions that close the toasts. All toasts close with the page. */
const shown = new Set();
/** The time in which an action can be undone. */
export const UNDO_SECONDS = 10;
on(window, "pagehide", () => shown.forEach((pass) => pass()));

/**
 * Show a toast for some seconds.
 *
 * @param {string|Array} text A text, or elements.
 * @param {object} [options] `action` (a label) and `onaction`; `kind` ("error" stays longer);
 *   `seconds`; `onover`, called when it closes without the action; `over`, a label for the button
 *   that closes it.
 * @returns {Function} Closes the toast without the action, and returns the result of `onover`.
 */
export function toast(text, { action, onaction, kind = "", seconds = kind ? 12 : 6, onover, over } = {}) {
  let timer;
  let before;
  const wait = () => clearTimeout(timer);
  const close = (then) => {
    wait();
    if (!shown.delete(pass)) return;
    const had = item.contains(document.activeElement);
    item.remove();
    if (had) focus(before);
    return then?.();
  };
  const pass = () => close(onover);
  const enter = ({ relatedTarget }) => {
    wait();
    if (!shelf.contains(relatedTarget)) before = relatedTarget;
  };
  const start = () => {
    wait();
    timer = setTimeout(pass, seconds * 1000);
  };
  // A toast stays open while the pointer or the focus is on it.
  const patience = { onpointerenter: wait, onfocusin: enter, onpointerleave: start, onfocusout: start };
  const item = h("div.toast", { class: kind, role: kind ? "alert" : null, ...patience },
    h("div", text),
    action && h("button.quiet", { onclick: () => close(onaction) }, action),
    over ? h("button.quiet", { onclick: pass }, over) : act("close", t("common.dismiss"), pass, "quiet"));
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
 * page may be closing. `show` runs after an undo or an error. `now` is a label for the button that
 * runs it at once.
 */
export function undoable(text, { hide, act, show, now }) {
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
  const end = toast(text, { action: t("common.undo"), seconds: UNDO_SECONDS, onaction: undo, onover: begin, over: now });
  waiting.set(end, null);
}

/** Requests that can still be undone, that run, or that have deleted an item: "DELETE /chats/ID". */
const pending = new Set();
const keyOf = (path, method = "DELETE") => `${method} ${path}`;
/** The end of a path with an id, which is never used again. */
const ID = /[\da-f]{12}$/;

/** True if a request waits or runs, or has deleted the item. Lists leave out such items. */
export const isPending = (path, method) => pending.has(keyOf(path, method));

function suit(element) {
  const is = pending.has(element.dataset.pending);
  if (element.matches("button")) element.ariaBusy = is ? "true" : null;
  else element.hidden = is;
}

/** Hide an element, or stop a button, while `isPending` is true for a request. Returns the element. */
export function pend(element, path, method) {
  element.dataset.pending = keyOf(path, method);
  suit(element);
  return element;
}

function mark(keys, is) {
  for (const key of keys) pending[is ? "add" : "delete"](key);
  document.querySelectorAll("[data-pending]").forEach(suit);
  dispatchEvent(new CustomEvent("pending", { detail: [...keys] }));
}

/**
 * Send a request to a path, or to several, unless the user undoes it within some seconds. By
 * default it deletes. Each change of `isPending` sends the event "pending" with the requests.
 *
 * @param {object} [options] `method`; `json`; `hides`: paths of items that are hidden as well;
 *   `hide` and `show` as for `undoable`; `then(...results)` runs at the end; and those of `send`.
 */
export function sendLater(text, paths, { method = "DELETE", json, hides = [], hide, show, then, now, ...more } = {}) {
  const all = [paths].flat();
  const keys = new Set([...all.map((path) => keyOf(path, method)), ...hides.map((path) => keyOf(path))]);
  undoable(text, {
    now,
    hide() {
      mark(keys, true);
      hide?.();
    },
    async act(options) {
      const results = await sendAll(all, async (path) => {
        const result = await api[method.toLowerCase()](path, json, { ...more, ...options });
        if (ID.test(path)) keys.delete(keyOf(path, method));
        return result;
      });
      await attempt(() => then?.(...results));
      mark(keys, false);
    },
    show() {
      mark(keys, false);
      show?.();
    },
  });
}

/**
 * Run the actions that can still be undone now, because the next request depends on them: it reads
 * or copies more than one item, or lets a model read.
 */
export const commit = () => Promise.all([...waiting].map(([end, done]) => done ?? end()));

/** Browsers drop downloads that follow each other faster, in milliseconds. */
const DOWNLOAD_PAUSE = 400;

/** Make the browser save files of the API, without items that are being deleted. */
export async function download(...paths) {
  await commit();
  for (const path of paths) {
    h("a", { href: api.url(path), download: "" }).click();
    if (path !== paths.at(-1)) await pause(DOWNLOAD_PAUSE);
  }
}

const HOMES = { campaign: "campaigns", event: "chronicles", lore: "lorebooks", message: "chats" };

/** Search the memory. Results that are being deleted are left out. */
export async function searchMemory(query, signal) {
  const answer = await api.get("/search", { query, signal });
  const isLeaving = ({ kind, source_id: id, container_id: home }) =>
    isPending(`/${HOMES[kind]}/${home}`) || [...pending].some((key) => key.startsWith("DELETE") && key.endsWith(id));
  const [items, close] = [answer.items, answer.near_misses].map((all) => all?.filter((it) => !isLeaving(it)));
  return { ...answer, items, near_misses: close };
}

/**
 * Open a dialog. `build(close)` returns its content, `close(value)` closes it.
 * The promise resolves to the value, or to undefined if the dialog was dismissed.
 */
export function dialog(title, build, { wide = false } = {}) {
  return new Promise((resolve) => {
    const before = hold(document.activeElement);
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
      focus(before());
      resolve(result);
    };
    // Keyboard shortcuts of the page do not apply behind a dialog.
    const onkeydown = (event) => event.stopPropagation();
    const box = h("dialog", { label: title, class: wide ? "wide" : "", onclose, onkeydown });
    on(window, "hashchange", dismiss);
    fill(box, h("header", h("h2", title), act("close", t("common.close"), dismiss, "quiet")), build(close));
    // A click beside a form must not discard the input.
    set(box, { closedby: box.querySelector("form") ? "closerequest" : "any" });
    document.body.append(box);
    box.showModal();
    shelve();
    (box.querySelector("[autofocus]") ?? box.querySelector(":is(input, textarea, select):not([hidden])"))?.focus();
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
  on(box, "keydown", (event) => {
    event.stopPropagation();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...box.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    buttons[(at + step + buttons.length) % buttons.length].focus();
  });
  on(box, "toggle", (event) => {
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
