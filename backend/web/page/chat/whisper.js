/** Lines that only some members hear: the command `/whisper`, and its completion. */
import { Problem } from "../core.js";
import { m } from "./cast.js";

const COMMAND = "/whisper";
const LETTER = /[\p{L}\p{N}]/u;

/** The names by which a member can be called with their ids, the longest one first. */
export const called = (members) =>
  members
    .flatMap(({ id, name, nickname }) => [name, nickname, name.split(/\s/)[0]].map((each) => [each, id]))
    .filter(([name]) => name)
    .sort(([one], [other]) => other.length - one.length);

/** True if a text begins with a name as a whole word. */
export const begins = (text, name) =>
  text.slice(0, name.length).toLowerCase() === name.toLowerCase() && !LETTER.test(text[name.length] ?? "");

/**
 * Read a typed line: `/whisper Alda, Bor Look behind you.`
 *
 * @returns {{text, audience}} `audience` is undefined without the command.
 * Throws a `Problem` if no member has the name.
 */
export function read(line, members) {
  if (!begins(line.trimStart(), COMMAND)) return { text: line };
  let text = line.trimStart().slice(COMMAND.length).trimStart();
  const audience = [];
  for (;;) {
    const [name, id] = called(members).find(([each]) => begins(text, each)) ?? [];
    if (!id) break;
    audience.push(id);
    const [comma] = /^[\s,:]*/.exec(text.slice(name.length));
    text = text.slice(name.length + comma.length);
    if (!comma.includes(",")) break;
  }
  if (!audience.length) {
    const [name] = text.split(/[,\n]/);
    throw new Problem({ title: name ? m("unknown", { name: name.slice(0, 40) }) : m("whom") }, 422);
  }
  return { text, audience: [...new Set(audience)] };
}

/** Return complete forms of a line that begins with the command: `[label, line]`. */
export function completions(line, members) {
  const [, before, part] = /^(\/whisper\s+(?:[^\n]*,\s*)?)([^,\n]*)$/i.exec(line) ?? [];
  if (before === undefined) return [];
  return members
    .filter(({ name }) => name.toLowerCase().startsWith(part.toLowerCase()) && name.length > part.length)
    .map(({ name }) => [name, `${before}${name} `]);
}
