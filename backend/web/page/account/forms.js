/** Texts, fields and forms of signing in and of the account. */
import { fill, h, icon, on, sendform, t } from "../core.js";

/** A text of the account views. */
export const a = (name, values) => t(`account.${name}`, values);

/** A required field. */
export const field = (name, autocomplete, type = name.includes("password") ? "password" : "text") => ({
  name, label: a(name), required: true, autocomplete, type, help: autocomplete === NEW && a("password_help"),
});
export const [OLD, NEW] = ["current-password", "new-password"];

/** A form with buttons that show its passwords. */
export function passwordForm(options) {
  const { element, controls } = sendform(options);
  for (const { input } of controls.values()) {
    if (input.type !== "password") continue;
    const onclick = () => (input.type = (show.ariaPressed = input.type === "password") ? "text" : "password");
    const attributes = { onclick, pressed: false, label: a("show_password") };
    const show = h("button.tag", attributes, a("show"));
    input.after(show);
  }
  return element;
}

/**
 * A secret that is shown once, with buttons to copy it and, if there is a `file` name, to save it.
 */
export function secret(text, file, what) {
  const onclick = async () => {
    await navigator.clipboard.writeText(text);
    fill(copy, icon("check"), t("common.copied"));
  };
  const copy = h("button", { onclick, "aria-live": "polite" }, icon("copy"), t("common.copy"));
  const href = `data:text/plain,${encodeURIComponent(`${location.host}, ${what}:\n${text}\n`)}`;
  return [
    // A line may break after a dash. The copied text has no breaks.
    h("output.secret", text.split(/(?<=-)/).map((piece) => [piece, h("wbr")])),
    h("div.row", navigator.clipboard && copy, file && h("a.button", { href, download: file }, icon("download"), a("download"))),
  ];
}

// A secret that is not stored yet is lost with the page.
on(window, "beforeunload", (event) => document.querySelector(".keepsake") && event.preventDefault());

/** A secret that the user has to store before continuing. */
export function keepsake(content, done) {
  const go = h("button.primary", { type: "submit", disabled: true }, a("go_on"));
  return h("form.stack.keepsake", { onsubmit: (event) => (event.preventDefault(), done()) },
    content,
    h("label.row", h("input", { type: "checkbox", oninput: () => (go.disabled = !go.disabled) }), a("kept")),
    h("footer", go));
}

export const recovery = ({ recovery_code: code }, name, done) =>
  keepsake([h("p", a("kept_help")), secret(code, `Talekeeper ${name}.txt`, a("recovery_code"))], done);
