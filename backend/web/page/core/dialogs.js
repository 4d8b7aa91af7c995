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

/** What has the messages that are shown pass: all do with the page. */
const shown = new Set();
addEventListener("pagehide", () => shown.forEach((pass) => pass()));

/**
 * Show a message for some seconds.
 *
 * @param {string|Array} text A text, or elements.
 * @param {object} [options] `action`, a label, and `onaction`; `kind`: "error" stays longer;
 *   `seconds`; `onover`, once it has passed without the action.
 */
export function toast(text, { action, onaction, kind = "", seconds = kind ? 12 : 6, onover } = {}) {
  let timer;
  const wait = () => clearTimeout(timer);
  const close = (then) => {
    wait();
    if (!shown.delete(pass)) return;
    item.remove();
    then?.();
  };
  const pass = () => close(onover);
  const start = () => {
    wait();
    timer = setTimeout(pass, seconds * 1000);
  };
  // Whoever reads or reaches for it has the time that it takes.
  const patience = { onpointerenter: wait, onfocusin: wait, onpointerleave: start, onfocusout: start };
  const item = h("div.toast", { class: kind, role: kind ? "alert" : null, ...patience },
    h("div", {}, text),
    action && h("button.quiet", { onclick: () => close(onaction) }, action),
    act("close", t("common.dismiss"), pass, "quiet"));
  shelve();
  shelf.append(item);
  shown.add(pass);
  start();
}

/** What an error says, and what can be done about it. One of our own making goes to the console. */
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

/** What a provider of models said itself, as a quotation; nothing if it said nothing. */
const quotation = ({ provider_message: words } = {}) =>
  words && h("blockquote.words", {}, h("small", {}, t("errors.provider_says")), " ", h("q", {}, words));

/** An error for people: its text, and the provider's own words if there are any. */
export const explained = (problem) => [h("span", {}, explain(problem)), quotation(problem.body)];

/** The same for a problem that is a part of another answer. */
export const told = (problem) => [h("span", {}, sentences(problem)), quotation(problem)];

/** Errors that the settings of a provider can mend. */
const AT_PROVIDER = new Set([
  "model-foreign-answer", "model-key-refused", "model-no-credit", "model-not-found", "model-redirect",
  "model-unavailable", "model-web-page", "model-wrong-address", "provider-address-refused",
]);

/** Errors that another model mends. */
const AT_SETTINGS = new Set(["model-writes-no-json", "unknown-model"]);

/** A link to where an error can be mended, if there is such a place. */
export const remedy = ({ slug }) =>
  AT_PROVIDER.has(slug) ? h("a.button", { href: "#/providers" }, t("models.open_settings"))
    : AT_SETTINGS.has(slug) && h("a.button", { href: "#/settings" }, t("settings.open"));

/** Tell of an error; not of what was given up because its view was left. */
export function complain(error) {
  if (error.name !== "AbortError") toast([explained(error), remedy(error)], { kind: "error" });
}

/** Do something, and tell of it where it fails; its result, or undefined. */
export async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    complain(error);
  }
}

/**
 * Do something that can be taken back for some seconds: `hide` at once, `act` when nobody took it
 * back (with `{ keepalive: true }`, for the page may be on its way out), `show` where somebody did
 * or it failed.
 */
export function undoable(text, { hide, act, show }) {
  hide();
  toast(text, {
    action: t("common.undo"),
    seconds: 8,
    onaction: show,
    onover: async () => {
      try {
        await act({ keepalive: true });
      } catch (error) {
        show();
        complain(error);
      }
    },
  });
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

/** The item of a menu that deletes what the menu is for. */
export const deleting = (does) =>
  ({ label: t("common.delete"), icon: "delete", danger: true, act: does });

/** A button that opens a menu of these items. */
export const more = (label, items) =>
  act("more", label, ({ currentTarget }) => menu(currentTarget, items), "quiet");
