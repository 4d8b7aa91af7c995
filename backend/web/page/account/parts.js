/** What the sections of the account are made of. */
import { attempt, dialog } from "../core/dialogs.js";
import { fill, h } from "../core/dom.js";
import { session } from "../core/store.js";
import { ago, has } from "../core/words.js";
import { a, doorform } from "./door.js";

export const help = (name) => has(`account.${name}_help`) && h("small.help", {}, a(`${name}_help`));
export const button = (name, act, more) => h("button", { onclick: () => attempt(act), ...more }, a(name));
export const part = (name, ...content) =>
  h("section.stack", {}, h("div", {}, h("h2", {}, a(name)), help(name)), content);
export const used = ({ last_used_at: at }) => (at ? a("used", { when: ago(at) }) : a("unused"));

/** Ask for something in a dialog, and show there what `send(values, close, box)` gives. */
export const ask = (name, fields, send) =>
  dialog(a(name), (close) => {
    const show = async (values) => fill(box, await send(values, close, box));
    const form = doorform({ fields, submit: a(name), send: show });
    // Whoever keeps passwords has to know whose this is.
    form.prepend(h("input", { hidden: true, autocomplete: "username", value: session.user.username }));
    const box = h("div.stack", { class: name }, help(name), form);
    return box;
  });
