/** Commands of the composer, such as `/roll 2d6`: what they do, and their completions. */
import { api, attempt, commit, Problem, t, toast } from "../core.js";
import { isGroup } from "./cast.js";
import { begins, called, completions as listeners } from "./whisper.js";

const COMMAND = /^\/(\p{L}+)(?!\S)\s*/u;
const DICE = /^(\d*)d(\d+)(?:\s*([+-])\s*(\d+))?(?!\S)\s*/i;
const [MOST_DICE, MOST_SIDES, MOST_ADDED] = [100, 1000, 9999];

const c = (name, values) => t(`command.${name}`, values);

/** Stop a command with a text that says why. Nothing is sent. */
function refuse(title) {
  throw new Problem({ title }, 422);
}
const needed = (text, name) => text || refuse(c(`needs.${name}`));

/** Add a message at the end of the path, without a model. */
async function append(room, body) {
  const { path } = room;
  // A message below one that is being deleted would be deleted with it.
  await commit();
  const message = await api.post(`/chats/${room.chat.id}/messages`, body);
  // The path may have changed in another window.
  if (message.position && path.at(message.position - 1)?.id !== message.parent_id) await path.reload();
  else path.put(message);
}

/** Roll dice, and return a line with the result: `rolls 2d6+1: 4 + 2 + 1 = 7`. */
function rolled(text) {
  const [formula, count, sides, sign, added] = DICE.exec(text) ?? refuse(c("needs.roll"));
  const dice = Number(count || 1);
  const isTooMuch = dice > MOST_DICE || sides > MOST_SIDES || added > MOST_ADDED;
  if (!dice || sides < 1 || isTooMuch) refuse(c("dice", { dice: MOST_DICE, sides: MOST_SIDES, added: MOST_ADDED }));
  const drawn = [...crypto.getRandomValues(new Uint32Array(dice))].map((each) => (each % sides) + 1);
  const plus = added ? Number(sign + added) : 0;
  const sum = drawn.reduce((all, each) => all + each, plus);
  const parts = `${drawn.join(" + ")}${added ? ` ${sign} ${added}` : ""}`;
  const result = parts === `${sum}` ? parts : `${parts} = ${sum}`;
  return c("rolled", { dice: [formula.trim(), text.slice(formula.length)].join(" ").trim(), result });
}

/** Everyone a line can be written as: the members who are there, then the user's personas. */
const speakers = ({ members, personas }) => [
  ...members.filter(({ presence }) => presence !== "absent").map((each) => ({ ...each, role: "assistant", key: "character_id" })),
  ...personas.map((each) => ({ ...each, role: "user", key: "persona_id" })),
];

async function speakAs(text, room, audience) {
  const known = speakers(room);
  const [name, id] = called(known).find(([each]) => begins(text, each)) ?? [];
  if (!id) refuse(text ? c("nobody", { name: text.split(/[:,\n]/)[0].slice(0, 40) }) : c("needs.as"));
  const { role, key } = known.find((each) => each.id === id);
  const line = needed(text.slice(name.length).replace(/^[\s:,]+/, ""), "as");
  await append(room, { role, [key]: id, text: line, audience });
}

async function note(text, room) {
  const path = `/chats/${room.chat.id}/settings`;
  const put = async (authors_note) => {
    const detail = await api.patch(path, { authors_note });
    room.events.dispatchEvent(new CustomEvent("settings", { detail }));
  };
  const before = (await api.get(path)).authors_note?.text ?? null;
  await put({ text: needed(text, "note") });
  toast(c("noted"), { action: t("common.undo"), onaction: () => attempt(() => put({ text: before })) });
}

/**
 * The functions of commands get the text after the command and the audience of a message that they
 * add, and throw a `Problem` if they cannot use it. Commands without a function take turns.
 */
const COMMANDS = {
  as: speakAs,
  continue: null,
  note,
  roll: async (text, room, audience) => append(room, { role: "user", text: rolled(text), audience }),
  sys: async (text, room, audience) => append(room, { role: "system", text: needed(text, "sys"), audience }),
  whisper: null,
};
const available = (room) => Object.keys(COMMANDS).filter((name) => name !== "whisper" || isGroup(room));

/**
 * Read a line that may be a command.
 *
 * @returns {{text, run, body, isPlain}} `run(audience)` runs the command, `body` is the turn that it
 *   takes. Without either, `text` is the line to send. In a line that begins with two slashes, the
 *   first one is removed, and the rest `isPlain`.
 * Throws a `Problem` if there is no such command here.
 */
export function read(line, room) {
  const start = line.trimStart();
  if (start.startsWith("//")) return { text: start.slice(1), isPlain: true };
  const [whole, word] = COMMAND.exec(start) ?? [];
  const name = word?.toLowerCase();
  // The demo model reads this command.
  if (!name || name === "demo") return { text: line };
  if (!available(room).includes(name)) refuse(name === "whisper" ? c("no_group") : c("unknown", { name }));
  if (name === "whisper") return { text: line };
  const rest = start.slice(whole.length).trim();
  if (name === "continue") return { body: rest ? refuse(c("no_text")) : { continue: true } };
  return { text: "", run: (audience) => COMMANDS[name](rest, room, audience) };
}

/** Complete forms of a line: `[label, line, help]`. */
export function completions(line, room) {
  const [, command] = /^\/(\p{L}*)$/u.exec(line) ?? [];
  if (command !== undefined) {
    return available(room)
      .filter((name) => name.startsWith(command.toLowerCase()) && name !== command)
      .map((name) => [`/${name}`, `/${name} `, c(`help.${name}`)]);
  }
  if (isGroup(room) && line.toLowerCase().startsWith("/whisper")) return listeners(line, room.members);
  const [, before, part] = /^(\/as\s+)([^\n]*)$/i.exec(line) ?? [];
  if (before === undefined) return [];
  return speakers(room)
    .filter(({ name }) => name.toLowerCase().startsWith(part.toLowerCase()) && name.length > part.length)
    .map(({ name, role }) => [name, `${before}${name} `, c(role === "user" ? "persona" : "character")]);
}

/** A line for each command, for the list of keyboard shortcuts. */
export const described = () => Object.keys(COMMANDS).map((name) => `/${name}\t${c(`help.${name}`)}`).join("\n");
