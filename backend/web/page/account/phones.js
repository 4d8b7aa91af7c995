/** Addresses of this server for phones in the same network, for administrators. */
import { api, h } from "../core.js";
import { a } from "./forms.js";
import { part, qr } from "./parts.js";

const COMMAND = "talekeeper serve --lan";

const place = (name, { url, qr: rows }) =>
  h("li.card", h("h3", a(name)), qr(rows, a(`${name}_qr`)), h("a", { href: url }, url));

const steps = (name) =>
  h("details.group", h("summary", a(name)),
    h("ol", a(`${name}_steps`).split("\n").map((step) => h("li", step))));

export async function phones(signal) {
  const { is_on: isOn, page, certificate, others, fingerprint } = await api.get("/admin/lan", { signal });
  if (!page) {
    // The command stays in one line, although browsers break lines at its hyphens.
    const [before, after = ""] = a(isOn ? "phones_nowhere" : "phones_off").split(COMMAND);
    return part("phones", h("p.soft", before, !isOn && h("code.figure", COMMAND), after));
  }
  return part("phones",
    h("ul.phones", place("phones_page", page), place("phones_certificate", certificate)),
    others.length > 0 && h("p.help", a("phones_others"), " ", others.map((url) => [h("a", { href: url }, url), " "])),
    h("p", a("phones_warning")),
    h("p", a("phones_install")),
    h("div", steps("phones_apple"), steps("phones_android")),
    h("p.help", a("phones_fingerprint"), " ", h("code", fingerprint)));
}
