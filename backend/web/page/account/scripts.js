/** The regex scripts of the account. */
import { h } from "../core.js";
import { accountScripts } from "../library/scripts.js";
import { a } from "./forms.js";
import { frame } from "./parts.js";

/** Route: #/scripts */
export default async function ({ signal, title }) {
  return frame("scripts", title,
    h("p.soft.lead", a("scripts_help")),
    await accountScripts(signal));
}
