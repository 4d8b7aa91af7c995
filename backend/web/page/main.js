/** The page's start: who is signed in, and which view an address shows. */
import { api } from "./core/api.js";
import { complain, explain, toast } from "./core/dialogs.js";
import { fill, h, style } from "./core/dom.js";
import { forget, kept, session } from "./core/store.js";
import { t } from "./core/words.js";
import { shell } from "./shell.js";

/**
 * Views by their address. Each module's default export is `async (context) => element`, where
 * `context` has `params`, `query` (URLSearchParams), `signal` (aborted when the view is left) and
 * `title(text)`. Views, and the style sheets they name, are loaded when they are first shown.
 */
const VIEWS = [
  [/^$/, () => import("./chat/list.js"), "library"],
  [/^chats\/(?<id>[\w-]+)$/, () => import("./chat/view.js"), "chat"],
  [/^characters$/, () => import("./library/characters.js"), "library"],
  [/^characters\/(?<id>[\w-]+)$/, () => import("./library/character.js"), "library"],
  [/^personas$/, () => import("./library/personas.js"), "library"],
  [/^lorebooks$/, () => import("./lore/books.js"), "lore"],
  [/^lorebooks\/(?<id>[\w-]+)$/, () => import("./lore/book.js"), "lore"],
  [/^memory$/, () => import("./memory/search.js"), "memory"],
  [/^chronicles$/, () => import("./memory/chronicles.js"), "memory"],
  [/^chronicles\/(?<id>[\w-]+)$/, () => import("./memory/chronicle.js"), "memory"],
  [/^activity$/, () => import("./activity.js"), "account"],
  [/^account$/, () => import("./account/account.js"), "account"],
];

let frame = null;
let leaving = new AbortController();
let shown = null;

async function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  // Another place in the same view: the view may go there itself.
  const moved = new CustomEvent("moved", { cancelable: true, detail: query });
  if (path === shown && !dispatchEvent(moved)) return;
  shown = path;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [pattern, load, sheet] = VIEWS.find(([each]) => each.test(path)) ?? [];
  frame.at(path);
  const waiting = setTimeout(() => {
    fill(frame.main, h("p.waiting", { role: "status" }, t("common.loading")));
  }, 250);
  let element;
  try {
    if (!load) throw Object.assign(new Error(), { slug: "no-view" });
    const [{ default: view }] = await Promise.all([load(), style(sheet)]);
    element = await view({
      params: pattern.exec(path).groups ?? {},
      query: new URLSearchParams(query),
      signal,
      title,
    });
  } catch (error) {
    if (signal.aborted) return;
    element = failed(error);
  } finally {
    clearTimeout(waiting);
  }
  if (signal.aborted) return;
  fill(frame.main, element);
  frame.main.scrollTop = 0;
  // Who gets about by keyboard or by ear goes on in the new view, not in the old link.
  if (!frame.main.contains(document.activeElement)) frame.main.focus({ preventScroll: true });
}

function title(text) {
  document.title = text ? `${text} · Talekeeper` : "Talekeeper";
}

function failed(error, again = show) {
  if (!error.body && error.slug !== "no-view") console.error(error);
  const text = error.body ? explain(error) : t(error.slug === "no-view" ? "errors.nowhere" : "errors.page");
  return h(
    "div.page",
    {},
    h(
      "div.empty",
      { role: "alert" },
      h("p", {}, text),
      h("button", { onclick: again }, t("common.retry")),
    ),
  );
}

async function start() {
  const theme = kept.get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  removeEventListener("hashchange", show);
  try {
    session.instance = await api.get("/instance");
  } catch (error) {
    return void fill(document.body, failed(error, start), toasts());
  }
  session.user = session.instance.user;
  if (!session.user) return enter();
  frame = shell();
  fill(document.body, frame.element, toasts());
  addEventListener("hashchange", show);
  await show();
}

const toasts = () => document.querySelector(".toasts");

/** The door: signing up, in, and back in. */
async function enter() {
  leaving.abort();
  session.user = null;
  forget();
  const [{ default: door }] = await Promise.all([import("./account/door.js"), style("account")]);
  fill(document.body, await door({ title, entered: start }), toasts());
}

addEventListener("signed-out", () => {
  if (!session.user) return;
  toast(t("errors.signed_out"));
  enter();
});
addEventListener("unhandledrejection", (event) => complain(event.reason));

start();
