/** Sampling settings: fields of an account and of a chat. */
import { among, field, numbers, text, word } from "../chat/fields.js";
import { attempt, combine, control, fill, h, labels, set, t, toast, UNDO_SECONDS } from "../core.js";
import { json } from "../core/json.js";
import { m } from "./picker.js";

const HARMS = ["harassment", "hate_speech", "sexually_explicit", "dangerous_content"];
const FILTERS = [null, "off", "none", "high", "medium", "low"];

/** The strictness of a provider's content filter, by kind of harm. */
function filters({ label, help }) {
  const options = FILTERS.map((each) => [each, m(`filters.${each}`)]);
  const made = HARMS.map((name) => [name, control({ kind: "select", name, label: m(`harms.${name}`), options })]);
  return {
    element: h("fieldset.field.wide",
      h("legend.label", label), h("div.fields", made.map(([, { element }]) => element)), h("small.help", help)),
    fault() {},
    read() {
      const chosen = made.map(([name, each]) => [name, each.read()]).filter(([, value]) => value);
      return chosen.length ? Object.fromEntries(chosen) : null;
    },
    write: (value) => made.forEach(([name, each]) => each.write(value?.[name] ?? null)),
  };
}

const given = (ranges) => numbers("sampling", ranges);
const written = (name, form) => field("area", `sampling.${name}`, { make: json, form });

/** Rarely used settings are in a group that is folded. */
const GROUPS = {
  sampling: [
    ...given({ temperature: [0, 2], top_p: [0.01, 1], max_output_tokens: [1, 1e6], thinking_budget: [-1, 1e6] }),
    among("sampling.reasoning_effort", null, "none", "minimal", "low", "medium", "high"),
    text("sampling.start_reply_with", 4000),
    field("lines", "sampling.stop"),
  ],
  sampling_choice: [
    ...given({
      top_k: [1, 1000], min_p: [0, 1], top_a: [0, 1], typical_p: [0.01, 1],
      xtc_probability: [0, 1], xtc_threshold: [0, 1], seed: [0, 2 ** 31 - 1],
    }),
    written("logit_bias"),
  ],
  sampling_repeats: [
    ...given({
      presence_penalty: [-2, 2], frequency_penalty: [-2, 2], repetition_penalty: [0.01, 3, , "any"],
      dry_multiplier: [0, 10, , "any"], dry_base: [1, 10, , "any"], dry_allowed_length: [1, 1000],
      dry_penalty_last_n: [-1, 1e6],
    }),
    written("dry_sequence_breakers", "array"),
  ],
  sampling_form: [
    field("area", "sampling.grammar", { most: 20_000 }),
    written("json_schema", "text"),
    field("select", "sampling.safety", { make: filters }),
  ],
};

const isSet = (value) => value != null && value !== "" && value.length !== 0;
/** The label of a setting. */
const label = (name) => labels(word(name)).label;
export const names = (all) => all.map(label).join(", ");
const shown = (value) => (typeof value === "object" ? JSON.stringify(value) : value);

/** The names of set settings that a model does not support. */
const untaken = (model, sampling) =>
  Object.keys(sampling).filter((name) =>
    isSet(sampling[name]) && model && !model.accepts.includes(name) && !model.refused.includes(name));

/** A patch that removes the settings that a model does not support. */
export const dropped = (model, sampling) => Object.fromEntries(untaken(model, sampling).map((name) => [name, null]));

/**
 * Say which settings the choice of a model has removed, if any. `before` are the settings with them.
 * `restore(patch)` is called if the user takes the choice back.
 */
export function removed(model, gone, before, restore) {
  const lost = Object.keys(gone);
  if (!lost.length) return;
  const sampling = Object.fromEntries(lost.map((name) => [name, before.sampling[name]]));
  const onaction = () => attempt(() => restore({ model: before.model ?? null, sampling }));
  toast(m("lost", { model: model.title, names: names(lost) }), { action: t("common.undo"), seconds: UNDO_SECONDS, onaction });
}

/**
 * Groups of fields for `autoform`.
 * `named` returns their values. `suit(model, usual)` shows the settings that the model supports,
 * marks unsupported values and names the others. `usual` are the inherited values.
 */
export function samplers() {
  const made = new Map();
  const note = h("small.help.field.wide", { role: "note" });
  const make = (field) => {
    const each = (field.make ?? control)(field);
    made.set(field.name.split(".")[1], Object.assign(each, { mark: h("small.fault") }));
    each.element.append(each.mark);
    return each;
  };
  const told = { name: "sampling_note", control: () => ({ element: note, read: () => null, write() {}, fault() {} }) };
  const groups = Object.entries(GROUPS).map(([title, fields], at) => ({
    title: word(title),
    fields: [...(at ? [] : [told]), ...fields.map((each) => ({ ...each, control: make }))],
  }));
  const suit = (model, usual = {}) => {
    const accepts = new Set(model?.accepts ?? made.keys());
    const refused = model?.refused ?? [];
    const isGiven = (name) => made.has(name) && isSet(made.get(name).read());
    const excluded = new Map(Object.entries(model?.excludes ?? {}).filter(([name]) => isGiven(name))
      .flatMap(([name, others]) => others.map((other) => [other, name])));
    const problem = (name) => {
      if (refused.includes(name)) return m("left_out", { model: model.title });
      if (!accepts.has(name)) return m("untaken", { model: model.title });
      return excluded.has(name) ? m("excluded", { names: names([excluded.get(name)]) }) : "";
    };
    for (const [name, { element, input, mark, read }] of made) {
      const isTaken = accepts.has(name);
      const wrong = isSet(read()) ? problem(name) : "";
      element.hidden = !isTaken && !wrong;
      mark.textContent = wrong;
      if (!input) continue;
      set(input, { "aria-description": wrong || null });
      const value = usual[name];
      if (!input.options) input.placeholder = shown(value ?? word(null));
      else input.options[0].text = value == null ? word(null) : word("usual_is", { value: word(value) });
    }
    for (const { element } of made.values()) {
      const group = element.closest("details");
      group.hidden = [...group.querySelectorAll(":scope > .fields > .field:not(.help)")].every((each) => each.hidden);
    }
    const lacking = [...made.keys()].filter((name) => !accepts.has(name) && !refused.includes(name));
    fill(note, combine([
      m("empty_is_usual"),
      refused.length > 0 && m("refused", { names: names(refused) }),
      lacking.length > 0 && m("lacking", { model: model.title, names: names(lacking) }),
    ], " "));
  };
  /** Settings by the names of their fields. With `all`, unset ones are included. */
  const named = (values, all) =>
    Object.fromEntries((all ? [...made.keys()] : Object.keys(values)).map((name) => [`sampling.${name}`, values[name] ?? null]));
  return { groups, suit, named };
}
