/** The fields of entries and books. Which there are, in groups, and in which order, texts.json says. */
import { api } from "../core/api.js";
import { autoform } from "../core/form.js";
import { h } from "../core/dom.js";
import { has, t } from "../core/words.js";
import texts from "../texts.json" with { type: "json" };

const { fields, help, options } = texts.lore;
/** Null in these stands for what is set elsewhere. */
const EITHER = /case|whole|scoring|recursive/;

/** Checkboxes for the members of a list. */
function boxes({ label, help: says, options: all }) {
  const made = all.map(([value, name]) => [h("input", { type: "checkbox", "aria-label": name }), value, name]);
  return {
    element: h(
      "fieldset.field.wide",
      {},
      h("legend.label", {}, label),
      h("div.row", {}, made.map(([input, , name]) => h("label.row", {}, input, name))),
      h("small.help", {}, says),
    ),
    fault() {},
    read: () => made.filter(([input]) => input.checked).map(([, value]) => value),
    write: (values) => made.forEach(([input, value]) => (input.checked = values.includes(value))),
  };
}

function field(name, value) {
  const either = EITHER.test(name);
  const choices = either ? options.either : options[name];
  const made = { name, label: fields[name], help: help[name], options: choices && Object.entries(choices) };
  if (either) made.options = made.options.map(([key, label]) => [JSON.parse(key), label]);
  if (Array.isArray(value)) return choices ? { ...made, control: boxes } : { ...made, kind: "lines" };
  if (choices) return { ...made, kind: "select" };
  if (name === "content" || name === "description") return { ...made, kind: "area", count: true };
  if (typeof value === "boolean") return { ...made, kind: "check" };
  if (typeof value === "string") return made;
  const min = name === "order" ? -1e6 : 0;
  return { ...made, kind: "number", min, max: name === "probability" ? 100 : undefined };
}

/** A form for a book or an entry: `save(changes)` gives it as it is then. */
export function editor(what, save, signal) {
  const flat = (value) => ({ ...value, ...value.character_filter });
  const known = flat(what);
  const form = autoform({
    value: known,
    signal,
    groups: Object.entries(texts.lore.groups[what.keys ? "entry" : "book"]).map(([title, names]) => ({
      title: has(`lore.titles.${title}`) && t(`lore.titles.${title}`),
      fields: names.split(" ").map((name) => field(name, known[name])),
    })),
    async save(changes) {
      const { is_exclude, names, tags, ...patch } = changes;
      const character_filter = { is_exclude, names, tags };
      return flat(await save(what.keys ? { ...patch, character_filter } : patch));
    },
  });
  return { ...form, write: (value) => form.write(flat(value)) };
}

/** Save changes of a book or an entry; a copy of what it is then. */
export async function patch(address, what, changes, ifMatch) {
  return { ...Object.assign(what, await api.patch(address, changes, { ifMatch, keepalive: true })) };
}

/** Where an entry goes, in words. */
export const place = ({ position, depth }) =>
  position === "at_depth" ? t("lore.up_there", { count: depth }) : options.position[position];

/** What an entry is called. */
export const called = ({ title, keys }) => title || keys.slice(0, 3).join(", ") || t("lore.nameless");
