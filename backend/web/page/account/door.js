/** Sign-up, sign-in and recovery, and secrets that are shown once. */
import { api } from "../core/api.js";
import { asset, fill, h, icon } from "../core/dom.js";
import { sendform } from "../core/form.js";
import { session } from "../core/store.js";
import { t } from "../core/words.js";
import { proven } from "./proof.js";

/** Return a text of the account. */
export const a = (name, values) => t(`account.${name}`, values);

/** A required field. */
export const field = (name, autocomplete, type = name.includes("password") ? "password" : "text") => ({
  name, label: a(name), required: true, autocomplete, type, help: autocomplete === NEW && a("password_help"),
});
export const [OLD, NEW] = ["current-password", "new-password"];

/** A form with passwords that can be made visible. */
export function doorform(options) {
  const { element, controls } = sendform(options);
  for (const { input } of controls.values()) {
    if (input.type !== "password") continue;
    const onclick = () => (input.type = (show.ariaPressed = input.type === "password") ? "text" : "password");
    const attributes = { type: "button", onclick, "aria-pressed": "false", "aria-label": a("show_password") };
    const show = h("button.tag", attributes, a("show"));
    input.after(show);
  }
  return element;
}

/** A secret that is shown once, with buttons to copy it and, with a `file`, to save it. */
export function secret(text, file, what) {
  const onclick = async () => {
    await navigator.clipboard.writeText(text);
    fill(copy, icon("check"), t("common.copied"));
  };
  const copy = h("button", { type: "button", onclick, "aria-live": "polite" }, icon("copy"), t("common.copy"));
  const href = `data:text/plain,${encodeURIComponent(`${location.host}, ${what}:\n${text}\n`)}`;
  return [
    // It can break after a dash, and is copied in one piece.
    h("output.secret", {}, text.split(/(?<=-)/).map((piece) => [piece, h("wbr")])),
    h("div.row", {}, navigator.clipboard && copy, file && h("a.button", { href, download: file }, icon("download"), a("download"))),
  ];
}

/** A secret that must be stored before the user can continue. */
export function keepsake(content, done) {
  const go = h("button.primary", { disabled: true }, a("go_on"));
  const form = h("form.stack", { onsubmit: (event) => (event.preventDefault(), done()) },
    content,
    h("label.row", {}, h("input", { type: "checkbox", oninput: () => (go.disabled = !go.disabled) }), a("kept")),
    h("footer", {}, go));
  addEventListener("beforeunload", (event) => form.isConnected && event.preventDefault());
  return form;
}

export const recovery = ({ recovery_code: code }, name, done) =>
  keepsake([h("p", {}, a("kept_help")), secret(code, `Talekeeper ${name}.txt`, a("recovery_code"))], done);

/** The sign-in page. `entered()` is called after the sign-in. `said` is the reason for it. */
export default function ({ title, entered, said }) {
  const { sign_up: may } = session.instance;
  const name = field("username", "username");
  const WAYS = {
    sign_in: ["/sessions", name, field("password", OLD)],
    sign_up: ["/accounts", ...(may === "invitation" ? [field("invitation")] : []), name, field("password", NEW)],
    recover: ["/recoveries", name, field("recovery_code"), field("new_password", NEW)],
  };
  const ways = { first: ["sign_up"], closed: ["sign_in", "recover"] }[may] ?? Object.keys(WAYS);
  const card = h("section.card");
  const show = (way) => {
    const [path, ...fields] = WAYS[way];
    const help = may === "first" ? a("hello") : way === "recover" ? a("recover_help") : said;
    const send = async (values) => {
      const made = await proven(card, (proof) => api.post(path, { ...values, ...proof }));
      if (!made.recovery_code) return entered();
      fill(card, h("h2", { tabindex: -1 }, a("keep")), recovery(made, made.user.username, entered));
      card.firstChild.focus();
    };
    title(a(way));
    fill(card,
      h("h2", {}, a(way)),
      help && h("p.help", {}, help),
      !isSecureContext && h("p.trouble", {}, a("in_the_clear")),
      doorform({ fields, send, submit: a(way === "recover" ? "go_on" : way) }),
      h("div.row", {}, ways.map((each) => each !== way && h("button.quiet", { onclick: () => show(each) }, a(each)))));
    setTimeout(() => card.querySelector("input").focus());
  };
  show(ways[0]);
  const brand = [h("img", { src: asset("icon.svg"), alt: "" }), h("h1", {}, "Talekeeper"), h("p.soft", {}, a("about"))];
  return h("main.door", {}, h("header", {}, brand), card);
}
