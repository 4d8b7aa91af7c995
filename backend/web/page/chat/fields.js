/** Fields of settings. A name is a path in them. */
import { mergePatch } from "../core/json.js";
import { has, t } from "../core/words.js";

/** Texts that chats and accounts share are stored once. */
export const word = (name, values) => t(`${has(`settings.${name}`) ? "settings" : "account"}.${name}`, values);

export const field = (kind, name, more, says = name.split(".").at(-1)) => {
  const [label, help] = word(says).split(" | ");
  return { kind, name, label, help, ...more };
};

export const text = (name, most) => field("area", name, { count: true, most });

/** A select of values. Null is the default. */
export const among = (name, ...values) =>
  field("select", name, { options: values.map((each) => [each, word(each)]) });

/** Number fields: `{ name: [min, max, placeholder, step] }`. */
export const numbers = (group, ranges) =>
  Object.entries(ranges).map(([name, [min, max, placeholder = word(null), step = max > 2 ? 1 : "any"]]) =>
    // A maximum of 1 or 2 means fractions.
    field("number", `${group}.${name}`, { min, max, step, placeholder }));

/** The author's note of a chat or a character. */
export const NOTE = [
  text("authors_note.text", 20_000),
  among("authors_note.position", "at_depth", "before_prompt", "after_prompt"),
  ...numbers("authors_note", { depth: [0, 10_000, 4] }),
  field("number", "authors_note.interval", { min: 0, max: 10_000, step: 1, placeholder: 1 }, "note_interval"),
  among("authors_note.role", "system", "user", "assistant"),
  among("authors_note.scan", false, true),
];

/** Return the value at a path. */
export const at = (settings, name) => name.split(".").reduce((found, part) => found?.[part], settings);

/** Return changes by path as a merge patch. An empty list or text resets the setting. */
export function patchOf(changes, before = {}) {
  const patch = {};
  for (const [name, now] of Object.entries(changes)) {
    const [member, group] = name.split(".").reverse();
    const where = group ? (patch[group] ??= {}) : patch;
    where[member] = now?.length === 0 ? null : mergePatch(at(before, name), now);
  }
  return patch;
}
