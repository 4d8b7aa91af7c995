/** Fields of settings: a name is a path in them. */
import { mergePatch } from "../core/json.js";
import { has, t } from "../core/words.js";

/** What a chat and an account both have has its name from there. */
export const word = (name, values) => t(`${has(`settings.${name}`) ? "settings" : "account"}.${name}`, values);

export const field = (kind, name, more, says = name.split(".").at(-1)) => {
  const [label, help] = word(says).split(" | ");
  return { kind, name, label, help, ...more };
};

export const text = (name, most) => field("area", name, { count: true, most });

/** Values to choose among: null is what holds where nothing is said. */
export const among = (name, ...values) =>
  field("select", name, { options: values.map((each) => [each, word(each)]) });

/** Numbers: `{ name: [min, max, placeholder, step] }`. */
export const numbers = (group, ranges) =>
  Object.entries(ranges).map(([name, [min, max, placeholder = word(null), step = max > 2 ? 1 : "any"]]) =>
    // What ends at 1 or 2 has fractions.
    field("number", `${group}.${name}`, { min, max, step, placeholder }));

/** An author's note: a chat's, or the one that a character brings. */
export const NOTE = [
  text("authors_note.text", 20_000),
  among("authors_note.position", "at_depth", "before_prompt", "after_prompt"),
  ...numbers("authors_note", { depth: [0, 10_000, 4] }),
  field("number", "authors_note.interval", { min: 0, max: 10_000, step: 1, placeholder: 1 }, "note_interval"),
  among("authors_note.role", "system", "user", "assistant"),
  among("authors_note.scan", false, true),
];

/** What stands at a path. */
export const at = (settings, name) => name.split(".").reduce((found, part) => found?.[part], settings);

/** Changes by path as a patch of what was there before. An empty list or text takes the setting away. */
export function patchOf(changes, before = {}) {
  const patch = {};
  for (const [name, now] of Object.entries(changes)) {
    const [member, group] = name.split(".").reverse();
    const where = group ? (patch[group] ??= {}) : patch;
    where[member] = now?.length === 0 ? null : mergePatch(at(before, name), now);
  }
  return patch;
}
