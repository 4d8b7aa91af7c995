/** The fields of entries and books. Which there are, in groups, and in which order, texts.json says. */
import { api } from "../core/api.js";
import { autoform, boxes } from "../core/form.js";
import { t, texts } from "../core/words.js";

const { fields, groups, help, options, titles } = texts.lore;
/** Null in these stands for what is set elsewhere. */
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

/** A form for a book or an entry: `save(changes)` gives it as it is then. */
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

/** Save changes of a book or an entry; a copy of what it is then. */
export async function patch(address, what, changes, ifMatch) {
  return { ...Object.assign(what, await api.patch(address, changes, { ifMatch, keepalive: true })) };
}

/** Where an entry goes, in words. */
export const place = ({ position, depth }) =>
  position === "at_depth" ? t("lore.up_there", { count: depth }) : options.position[position];

/** What an entry is called. */
export const called = ({ title, keys }) => title || keys.slice(0, 3).join(", ") || t("lore.nameless");
