/** The available models of a provider, and the user's settings for each. */
import {
  act, ago, api, attempt, control, dialog, fill, finder, h, labels, on, Problem, sendform, t, told,
} from "../core.js";
import { PATH } from "./parts.js";
import { about, m } from "./picker.js";

const SIZES = { context_window: 1024, max_output_tokens: 1 };
const PRICES = ["input", "output", "cached_input"];

/** Abilities that the user can set, with their values. Null uses the learned value. */
const SWITCHES = {
  tool_support: ["native", "structured", "fenced", "none"],
  message_shape: ["lenient", "system_first", "alternating", "no_system"],
  image_support: ["native", "none"],
};

/**
 * Fields for a model's limits and prices. `read()` returns the set values. Known values are
 * placeholders.
 */
function figures(model, own) {
  const made = (name, more, value, hint) => {
    const each = control({ name: `${model.name} ${name}`, kind: "number", label: m(`figures.${name}`), placeholder: hint ?? "", ...more });
    each.write(value);
    return [name, each];
  };
  const sizes = Object.entries(SIZES).map(([name, min]) => made(name, { min, step: 1 }, own[name], model[name]));
  const prices = PRICES.map((name) => made(name, { min: 0 }, own.price?.[name], model.price?.[name]));
  const switches = Object.entries(SWITCHES).map(([name, values]) => {
    const now = own[name] ? m("automatic") : m("automatic_now", { value: m(`${name}s.${model[name]}`) });
    const options = [[null, now], ...values.map((each) => [each, m(`${name}s.${each}`)])];
    const each = control({ name: `${model.name} ${name}`, kind: "select", ...labels(m(`figures.${name}`)), options });
    each.write(own[name] ?? null);
    return [name, each];
  });
  const read = (all) => Object.fromEntries(all.map(([name, each]) => [name, each.read()]).filter(([, value]) => value != null));
  return {
    element: h("div.fields", { role: "group", label: m("figures_of", { name: model.name }) },
      [...sizes, ...prices].map(([, { element }]) => element),
      h("small.help.field.wide", m("figures_help")),
      switches.map(([, { element }]) => element)),
    read() {
      const price = read(prices);
      return { ...read([...sizes, ...switches]), ...(Object.keys(price).length ? { price } : {}) };
    },
  };
}

/** Choose a provider's models in a dialog, which opens at `model`. Resolves to true once stored. */
export function chosen(provider, model) {
  const { id, name, revision } = provider;
  const path = `${PATH}/${id}`;
  const kept = new Map(provider.models.map((each) => [each.name, each]));
  return dialog(m("models_of", { name }), (close) => {
    const said = h("small.soft", { role: "status" });
    const report = h("div.stack");
    const list = h("ul.models");
    const find = finder(m("search"), (count) => (said.textContent = m("found", { count })));
    let rows = new Map();
    let before = rows;
    const line = (model) => {
      const own = kept.get(model.name) ?? {};
      const title = model.title ?? model.name;
      const box = h("input", { type: "checkbox", checked: before.get(model.name)?.box.checked ?? model.enabled });
      const row = { box, read: () => own };
      const place = h("div");
      row.open = () => {
        const form = figures(model, own);
        // Other settings of the model are kept.
        const { context_window, max_output_tokens, price, tool_support, message_shape, image_support, ...rest } = own;
        row.read = () => ({ ...rest, ...form.read() });
        fill(place, form.element);
        edit.hidden = true;
        place.querySelector("input").focus();
      };
      const edit = act("edit", m("figures_of", { name: title }), row.open, "quiet");
      rows.set(model.name, row);
      const label = h("label.row.grow", box,
        h("span.grow.clip", title, " ", h("small.help", about({ ...model, provider_name: null }, { always: true }))));
      const element = h("li",
        h("div.row", label, edit), place);
      return [element, `${title} ${model.name}`];
    };
    const read = async (refresh) => {
      const { items, listed_at: at, problem } = await api.get(`${path}/models`, { query: { refresh } });
      // Selections are kept while the list changes.
      [before, rows] = [rows, new Map()];
      find.items = items.map(line);
      fill(list, find.items.map(([element]) => element));
      find.run();
      fill(report,
        problem && h("div.trouble", { role: "alert" }, told(problem)),
        at && h("small.soft", m("listed", { when: ago(at) })));
    };
    const all = control({ kind: "check", name: "all", label: m("all_listed"), help: m("all_help") });
    const choice = h("div.stack", find.input, said, list);
    const suit = () => (choice.hidden = all.read());
    on(all.input, "change", suit);
    const send = async () => {
      const some = [...rows].filter(([, { box }]) => box.checked);
      if (!all.read() && !some.length) throw new Problem({ title: m("choose_one") });
      const models = all.read() ? [] : some.map(([model, row]) => ({ ...row.read(), name: model }));
      await api.patch(path, { models }, { ifMatch: revision });
      close(true);
    };
    const refresh = () => attempt(() => read(true));
    // Enter in the search field must not submit the form.
    on(find.input, "keydown", (event) => event.key === "Enter" && event.preventDefault());
    const { element } = sendform({
      fields: [{ name: "all", control: () => all, value: !kept.size }],
      submit: t("common.save"),
      send,
      extra: h("div.stack", choice, report, h("div", h("button", { onclick: refresh }, m("refresh")))),
    });
    suit();
    attempt(async () => {
      await read(false);
      if (!rows.has(model)) return;
      // Only chosen models have settings.
      all.write(false);
      suit();
      rows.get(model).box.checked = true;
      rows.get(model).open();
    });
    return element;
  }, { wide: true });
}
