/** Building blocks of the account's sections. */
import { ago, attempt, dialog, fill, h, has, session, set, svg, t, tabs } from "../core.js";
import { a, passwordForm } from "./forms.js";

export const help = (name) => has(`account.${name}_help`) && h("small.help", a(`${name}_help`));
export const button = (name, act, more) => h("button", { onclick: () => attempt(act), ...more }, a(name));
export const part = (name, ...content) =>
  h("section.stack", h("div", h("h2", a(name)), help(name)), content);
export const used = ({ last_used_at: at }) => (at ? a("used", { when: ago(at) }) : a("unused"));

const AREAS = ["settings", "providers", "memory-settings", "presets", "scripts", "imports", "clients", "security"];

/** Tabs of the settings views. Administrators have one more. */
export function areas(here) {
  const names = [...AREAS, session.user.is_administrator && "server"].filter(Boolean);
  const places = names.map((name) => [name, t(`settings.areas.${name}`), `#/${name}`]);
  return set(tabs(t("settings.title"), here, places), { class: "side" });
}

/** A settings view: its heading, the tabs, and its content. */
export function frame(here, title, ...content) {
  const name = t(`settings.areas.${here}`);
  title(name);
  return h("div.page.narrow", h("header", h("h1", here === "settings" ? t("settings.title") : name)), areas(here), content);
}

/** A choice that is saved at once. `act` returns the value that applies then. */
export function choice(name, values, value, act) {
  const inputs = values.map((each) => {
    const onchange = async () => (inputs[values.indexOf(await act(each))].checked = true);
    return h("input", { type: "radio", name, checked: each === value, onchange });
  });
  return part(name, h("div.choice", { role: "radiogroup", label: a(name) }, values.map((each, at) =>
    h("label.card", inputs[at], h("span", a(each), help(each))))));
}

const MARGIN = 4;

/** A QR code from its rows of modules. */
export function qr(rows, label) {
  const size = rows.length + 2 * MARGIN;
  const dark = rows.flatMap((row, y) =>
    [...row.matchAll(/1+/g)].map(({ 0: { length }, index }) =>
      `M${index + MARGIN} ${y + MARGIN}h${length}v1h-${length}z`));
  const attributes = { class: "qr", viewBox: `0 0 ${size} ${size}`, role: "img", label };
  return svg("svg", attributes, svg("path", { d: dark.join(""), "shape-rendering": "crispEdges" }));
}

/**
 * Ask for values in a dialog, which then shows the result of `send(values, close, box)`. `extra` is
 * shown above the form.
 */
export const ask = (name, fields, send, extra) =>
  dialog(a(name), (close) => {
    const show = async (values) => fill(box, await send(values, close, box));
    const form = passwordForm({ fields, submit: a(name), send: show });
    // Password managers need the username.
    form.prepend(h("input", { hidden: true, autocomplete: "username", value: session.user.username }));
    const box = h("div.stack", { class: name }, help(name), extra, form);
    return box;
  });
