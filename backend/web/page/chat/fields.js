/** Fields of settings. The name of a field is a path in the settings. */
import { mergePatch } from "../core/json.js";
import { has, labels, t } from "../core.js";

/** The label of a setting. Settings that chats and accounts share have one label. */
export const word = (name, values) => t(`${has(`settings.${name}`) ? "settings" : "account"}.${name}`, values);

export const field = (kind, name, more, says = name.split(".").at(-1)) => ({ kind, name, ...labels(word(says)), ...more });

export const text = (name, most) => field("area", name, { count: true, most });

/** A select. The value null means the inherited value. */
export const among = (name, ...values) =>
  field("select", name, { options: values.map((each) => [each, word(each)]) });

/** Number fields: `{ name: [min, max, placeholder, step] }`. */
export const numbers = (group, ranges) =>
  Object.entries(ranges).map(([name, [min, max, placeholder = word(null), step = max > 2 ? 1 : "any"]]) =>
    // Ranges that end at 1 or 2 allow fractions.
    field("number", `${group}.${name}`, { min, max, step, placeholder }));

/** The fields of an author's note, of a chat or a character. */
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

/** Return changes by path as a merge patch. An empty list or text removes the setting. */
export function patchOf(changes, before = {}) {
  const patch = {};
  for (const [name, now] of Object.entries(changes)) {
    const [member, group] = name.split(".").reverse();
    const where = group ? (patch[group] ??= {}) : patch;
    where[member] = now?.length === 0 ? null : mergePatch(at(before, name), now);
  }
  return patch;
}
