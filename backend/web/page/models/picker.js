/** Choose a model from a few or hundreds, by its context window, price and abilities. */
import { combine, control, dialog, fill, finder, h, icon, money, set, t } from "../core.js";

/** A text of the model views. */
export const m = (path, values) => t(`models.${path}`, values);

/**
 * The context window of a model as text. By default, the source is only named if the number is
 * assumed.
 */
export function windowOf({ context_window: count, figures_from: from }, { always = false } = {}) {
  const source = (always || from === "default") && m(`figures_from.${from}`);
  return m("window", { count }) + (source ? ` (${source})` : "");
}

/** A link to the details of a model, by its id. */
export const figuresLink = (id, label) =>
  h("a", { href: `#/providers?${new URLSearchParams({ model: id })}` }, label);

/** A link to the setting of a model's context window, by the model's id. */
export const windowLink = (id) => figuresLink(id, m("set_window"));

/** The details of a model as text. */
export function about(model, options) {
  const { provider_name: provider, price, abilities = [], tool_support: support = "native" } = model;
  return combine([
    provider,
    windowOf(model, options),
    price && m("price", { input: money(price.input), output: money(price.output) }),
    price?.cached_input != null && m("cached", { cached: money(price.cached_input) }),
    ...abilities.map((each) => m(`abilities.${each}`)),
    support !== "native" && m("tools_by", { way: m(`tool_supports.${support}`) }),
  ]);
}

/**
 * Ask for one of the options `[id, title]`. Returns its id, or undefined if the dialog was
 * dismissed.
 */
export const choose = (label, options, models, chosen) =>
  dialog(label, (close) => {
    const said = h("small.soft", { role: "status" });
    const find = finder(m("search"), (count) => (said.textContent = m("found", { count })));
    find.items = options.map(([id, title]) => {
      const model = models.find((each) => each.id === id);
      const facts = model && about(model);
      const button = h("button.choosing", { pressed: id === chosen, onclick: () => close(id) },
        h("span", title), facts && h("small", facts));
      return [h("li", button), `${title} ${id} ${facts ?? ""}`];
    });
    const list = h("ul.models", find.items.map(([element]) => element));
    // The arrow keys move between the field and the list.
    const onkeydown = (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step && !(event.key === "Enter" && event.target === find.input)) return;
      event.preventDefault();
      const shown = [...list.querySelectorAll("li:not([hidden]) button")];
      if (!step) return shown[0]?.click();
      (shown[shown.indexOf(document.activeElement) + step] ?? find.input).focus();
    };
    find.run();
    return h("div.stack", { onkeydown }, find.input, said, list);
  }, { wide: true });

/**
 * A field with the interface of `control` whose `options` are models; `models` contains their
 * details.
 */
export function picker(field) {
  const { options, models, label } = field;
  const made = control({ ...field, kind: "text" });
  let value = null;
  const shown = h("span.grow.clip");
  const button = h("button.picked", { name: field.name, "aria-haspopup": "dialog", id: made.input.id }, shown, icon("down"));
  const facts = h("small.help");
  const draw = () => {
    const [, title] = options.find(([id]) => id === value) ?? [value, value];
    const model = models.find(({ id }) => id === value);
    fill(shown, title);
    set(button, { label: `${label}: ${title}` });
    fill(facts, model && about(model));
  };
  button.onclick = async () => {
    const chosen = await choose(label, options, models, value);
    if (chosen === undefined || chosen === value) return;
    value = chosen;
    draw();
    button.dispatchEvent(new Event("change", { bubbles: true }));
  };
  made.input.replaceWith(button);
  button.after(facts);
  return {
    ...made,
    input: button,
    read: () => value,
    write(now) {
      value = now ?? null;
      draw();
    },
  };
}
