/** Settings for all chats, and the theme of the page. */
import { h } from "../core/dom.js";
import { session, theme } from "../core/store.js";
import { t, texts } from "../core/words.js";
import { defaults } from "./defaults.js";
import { areas, choice, part } from "./parts.js";
import { phones } from "./phones.js";
import { quickReplies } from "./quick-replies.js";

const look = (name) => (theme.set(name), name);

/** Route: #/settings */
export default async function ({ signal, title }) {
  title(t("settings.title"));
  return h("div.page.narrow", {},
    h("header", {}, h("h1", {}, t("settings.title"))),
    areas("settings"),
    part("defaults", await defaults(signal)),
    part("quick_replies", await quickReplies(signal)),
    part("memory", h("div", {}, h("a", { href: "#/memory/status" }, texts.memory.status.title))),
    session.user.is_administrator && (await phones(signal)),
    choice("theme", ["auto", "light", "dark"], theme.get(), look));
}
