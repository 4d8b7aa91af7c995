/** Entry point of the page: the session, and the view of each address. */
import {
  api, complain, explain, fill, h, on, pageSettings, Problem, restyle, session, style, t,
} from "./core.js";
import { keepFocus } from "./core/focus.js";
import { shell } from "./shell.js";

/**
 * Views by their address, where `id` stands for any id.
 * The default export of each module is `async (context) => element`. `context` has `params`,
 * `query` (URLSearchParams), `signal` (aborts when the user leaves the view) and `title(text)`.
 * Views and their style sheets are loaded when they are first shown.
 */
const VIEWS = new Map([
  ["", ["chat/list", "library"]],
  ["chats/id", ["chat/view", "chat"]],
  ["characters", ["library/characters", "library"]],
  ["characters/id", ["library/character", "library"]],
  ["personas", ["library/personas", "library"]],
  ["lorebooks", ["lore/books", "lore"]],
  ["lorebooks/id", ["lore/book", "lore"]],
  ["memory", ["memory/search", "memory"]],
  ["memory/id", ["memory/status", "memory"]],
  ["chronicles", ["memory/chronicles", "memory"]],
  ["chronicles/id", ["memory/chronicle", "memory"]],
  ["campaigns", ["campaign/campaigns", "campaign"]],
  ["campaigns/id", ["campaign/campaign", "campaign"]],
  ["activity", ["activity", "account"]],
  ["providers", ["models/providers", "account"]],
  ["presets", ["presets/list", "presets"]],
  ["presets/id", ["presets/editor", "presets"]],
  ["settings", ["account/settings", "account"]],
  ["memory-settings", ["account/memory", "account"]],
  ["scripts", ["account/scripts", "account"]],
  ["imports", ["transfer/imports", "transfer"]],
  ["imports/id", ["transfer/results", "transfer"]],
  ["clients", ["account/clients", "account"]],
  ["security", ["account/security", "account"]],
  ["server", ["account/server", "account"]],
  ["account", ["account/account", "account"]],
]);

let frame = null;
let leaving = new AbortController();
let shown = null;

async function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  // If only the query changed, the view may handle it itself.
  const moved = new CustomEvent("moved", { cancelable: true, detail: query });
  if (path === shown && !dispatchEvent(moved)) return;
  shown = path;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [module, sheet] = VIEWS.get(path.replace(/\/[\w-]+$/, "/id")) ?? [];
  frame.at(path);
  const dressed = restyle();
  const first = !frame.main.hasChildNodes();
  const loading = h("p.waiting", { role: "status" }, t("common.loading"));
  const waiting = setTimeout(() => signal.aborted || fill(frame.main, loading), 250);
  let element;
  try {
    if (!module) throw new Problem({ title: t("errors.nowhere") });
    const [{ default: view }] = await Promise.all([import(`./${module}.js`), style(sheet)]);
    if (signal.aborted) return;
    element = await view({
      params: { id: path.split("/")[1] },
      query: new URLSearchParams(query),
      signal,
      title,
    });
  } catch (error) {
    if (signal.aborted) return;
    shown = null;
    element = failed(error, module ? show : null);
  } finally {
    clearTimeout(waiting);
  }
  if (signal.aborted) return;
  fill(frame.main, element);
  dressed();
  frame.main.scrollTop = 0;
  // The focus moves to the new view, for users of keyboards and screen readers.
  if (!first && !frame.main.contains(document.activeElement)) frame.main.focus({ preventScroll: true });
}

function title(text) {
  document.title = `${text} · Talekeeper`;
}

function failed(error, again = show) {
  const way = again ? h("button", { onclick: again }, t("common.retry")) : h("a.button", { href: "#/" }, t("shell.chats"));
  return h("div.page", h("div.empty", { role: "alert" }, h("p", explain(error)), way));
}

/** Replace the content of the page. Toasts stay. */
const put = (element) => fill(document.body, element, document.querySelector(".toasts"));

async function start() {
  try {
    session.instance = await api.get("/instance");
  } catch (error) {
    return put(failed(error, start));
  }
  session.user = session.instance.user;
  if (!session.user) return put(await signIn(start));
  await pageSettings.load();
  frame = shell();
  put(frame.element);
  on(window, "hashchange", show);
  await show();
}

/** The sign-in page. */
async function signIn(entered, said) {
  const [{ default: view }] = await Promise.all([import("./account/sign-in.js"), style("account")]);
  return view({ title, entered, said });
}

/** Ask the user to sign in again in front of the current page, which is kept. */
async function comeBack() {
  if (!session.user || session.away) return;
  session.away = true;
  const before = document.title;
  const entered = async () => {
    const { user } = await api.get("/instance");
    if (user.id !== session.user.id) return location.reload();
    Object.assign(session, { user, away: false });
    // Toasts may be inside the form.
    over.replaceWith(...over.querySelectorAll(".toasts"));
    document.title = before;
    if (shown === null) show();
  };
  const over = h("dialog.over", { label: t("account.sign_in"), onclose: () => over.showModal() });
  fill(over, await signIn(entered, t("errors.signed_out")));
  document.body.append(over);
  over.showModal();
}

keepFocus();
on(window, "signed-out", comeBack);
on(window, "unhandledrejection", (event) => complain(event.reason));
// A file that is dropped in the wrong place must not replace the page.
const miss = (event) => event.dataTransfer.types.includes("Files") && event.preventDefault();
on(window, "dragover drop", miss);

/**
 * Let the browser store the files of the page, so that it opens without a network and can be
 * installed. Browsers offer service workers only in secure contexts.
 */
function storeFiles() {
  const worker = "/worker.js";
  // The only policy that the Content Security Policy allows. It creates no markup.
  const policy = globalThis.trustedTypes?.createPolicy("worker", { createScriptURL: () => worker });
  navigator.serviceWorker?.register(policy?.createScriptURL("") ?? worker).catch(() => {});
}

addEventListener("load", storeFiles, { once: true });
start();
