/** The fields of entries and books. texts.json lists them in groups and in order. */
import { api, autoform, boxes, t, texts } from "../core.js";

const { fields, groups, help, options, titles } = texts.lore;
/** In these fields, null means the inherited value. */
const EITHER = /case|whole|scoring|recursive/;

function field(name, value) {
  const either = EITHER.test(name);
  const choices = options[either ? "either" : name];
  const made = { name, label: fields[name], help: help[name] };
  if (choices) {
    if (Array.isArray(value)) made.control = boxes;
    const option = ([key, label]) => [either || key === "null" ? JSON.parse(key) : key, label];
    return { ...made, kind: "select", options: Object.entries(choices).map(option) };
  }
  if (Array.isArray(value)) return { ...made, kind: "lines" };
  if (/content|description/.test(name)) return { ...made, kind: "area", count: true };
  if (typeof value === "boolean") return { ...made, kind: "check" };
  if (typeof value === "string") return made;
  const max = name === "probability" ? 100 : undefined;
  return { ...made, kind: "number", min: name === "order" ? -1e6 : 0, max };
}

/** A form for a book or an entry. `save(changes)` returns the new state. */
export function editor(what, save, signal) {
  const flat = (value) => ({ ...value, ...value.character_filter });
  const known = flat(what);
  const form = autoform({
    value: known,
    signal,
    groups: Object.entries(groups[what.keys ? "entry" : "book"]).map(([title, names]) => ({
      title: titles[title],
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

/** Save changes of a book or an entry. Returns a copy of its new state. */
export async function patch(address, what, changes, ifMatch) {
  return { ...Object.assign(what, await api.patch(address, changes, { ifMatch, keepalive: true })) };
}

/** The position of an entry as text. */
export const place = ({ position, depth }) =>
  position === "at_depth" ? t("lore.up_there", { count: depth }) : options.position[position];

/** The title of an entry. */
export const called = ({ title, keys }) => title || keys.slice(0, 3).join(", ") || t("lore.nameless");
