/** The frame around every view: navigation, recent chats, and the view itself. */
import { api, asset, attempt, chats, fill, h, icon, kept, on, pause, set, t } from "./core.js";
import { connection } from "./core/connection.js";
import { forget, imports, receive } from "./core/importing.js";
import { stayAboveKeyboard } from "./core/keyboard.js";
import { files, takeUp } from "./transfer/files.js";

const PLACES = [
  ["chats", "chat", "#/"],
  ["characters", "people"],
  ["lorebooks", "book"],
  ["memory", "memory"],
];
const RECENT = 12;

/** The area of the navigation that each address belongs to. */
const AREAS = {
  "": "chats", personas: "characters", chronicles: "memory", campaigns: "chats",
  providers: "settings", presets: "settings", scripts: "settings", imports: "settings",
  clients: "settings", "memory-settings": "settings", security: "settings", server: "settings",
};

/** @returns {{element, main, at(path)}} `at` marks the current area. */
export function shell() {
  const main = h("main", { id: "main", tabindex: "-1" });
  const recent = h("nav.recent", { label: t("shell.recent") });
  const places = h("nav.places", { label: t("shell.places") }, PLACES.map((each) => place(...each)));
  const activity = place("activity", "activity");
  const settings = place("settings", "settings");
  const account = place("account", "person");
  const keys = h("kbd", { "aria-hidden": "true" }, t("search.keys"));
  const find = h("button.place", { onclick: search, "aria-keyshortcuts": "Control+K Meta+K" },
    icon("search"), h("span", t("search.title")), keys);
  const brand = h("a.brand", { href: "#/" }, h("img", { src: asset("icon.svg"), alt: "" }), "Talekeeper");
  const rail = h("div.rail", brand, find, places, recent, activity, settings, account);
  const skip = h("button.skip", { onclick: () => main.focus() }, t("shell.skip"));
  const element = h("div.shell", skip, rail, h("div.above", connection(), imports), main);

  let path = "";
  const mark = () => {
    const area = path.split("/")[0];
    for (const each of rail.querySelectorAll("a")) {
      const is = each.dataset.area === (AREAS[area] ?? area) || each.hash === `#/${path}`;
      set(each, { "aria-current": is && "page" });
    }
  };
  let shown;
  const list = async () => {
    const items = (await chats.all().catch(() => [])).filter((chat) => !chat.archived_at).slice(0, RECENT);
    const now = JSON.stringify(items.map(({ id, title }) => [id, title]));
    if (now === shown) return;
    shown = now;
    fill(
      recent,
      items.length > 0 && h("h2", t("shell.recent")),
      items.map((chat) =>
        h("a", { href: `#/chats/${chat.id}` }, h("span.clip", chat.title || t("chats.untitled"))),
      ),
    );
    mark();
  };
  on(window, "keydown", onkeydown);
  on(window, "chats-changed", list);
  // Other clients may have opened chats.
  on(window, "focus", () => chats.changed());
  list();
  watch(activity);
  files.at();
  receive(element);
  stayAboveKeyboard();
  takeUp().catch(() => {});

  return {
    element,
    main,
    at(where) {
      path = where;
      forget();
      element.classList.toggle("whole", /^chats\/./.test(path));
      mark();
    },
  };
}

let searching = false;

/** Open the search field, unless a dialog is open. */
async function search() {
  if (searching || document.querySelector("dialog[open]")) return;
  searching = true;
  await attempt(async () => (await import("./search/palette.js")).default());
  searching = false;
}

function onkeydown(event) {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  search();
}

function place(name, sign, href = `#/${name}`) {
  return h("a.place", { href, "data-area": name }, icon(sign), h("span", t(`shell.${name}`)));
}

/** Mark the link with a dot while jobs run, or if jobs have failed since the user last looked. */
async function watch(link) {
  const dot = h("span.dot", { role: "img" });
  do {
    if (document.hidden) continue;
    const { items } = await api.get("/jobs").catch(() => ({ items: [] }));
    const bad = items.some(({ id, state }) => state === "dead" && id > kept.get("seen", ""));
    dot.classList.toggle("bad", bad);
    dot.ariaLabel = t(bad ? "activity.trouble" : "activity.running");
    if (bad || items.some(({ state }) => state === "running")) link.append(dot);
    else dot.remove();
  } while (await pause(15_000), link.isConnected);
}
