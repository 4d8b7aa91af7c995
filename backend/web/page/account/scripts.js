/** The regex scripts of the account. */
import { h } from "../core/dom.js";
import { t } from "../core/words.js";
import { accountScripts } from "../library/scripts.js";
import { a } from "./forms.js";
import { areas } from "./parts.js";

/** Route: #/scripts */
export default async function ({ signal, title }) {
  title(t("scripts.title"));
  return h("div.page.narrow", {},
    h("header", {}, h("h1", {}, t("scripts.title"))),
    areas("scripts"),
    h("p.soft.lead", {}, a("scripts_help")),
    await accountScripts(signal));
}
