/** Regex scripts: a list, and a dialog that edits and tests one. */
import {
  act, api, attempt, autoform, control, dialog, fill, h, labels, Problem, settled, t, toast, UNDO_SECONDS,
} from "../core.js";
import { pick } from "../core/importing.js";

const say = (name, values) => t(`scripts.${name}`, values);
const field = (name, more) => ({ name, ...labels(say(name)), ...more });

/** SillyTavern's numbers for the targets of a script. */
const PLACES = { user: 1, reply: 2, lore: 5, reasoning: 6 };
const FORMS = ["stored", "shown", "prompt", "both"];
const GROUPS = [
  { fields: [
    field("scriptName", { most: 200, wide: true }),
    field("findRegex", { most: 20_000, wide: true }),
    field("replaceString", { kind: "area", most: 20_000 }),
    ...Object.keys(PLACES).map((name) => field(name, { kind: "check" })),
    field("form", { kind: "select", options: FORMS.map((each) => [each, say(each)]), wide: true }),
  ] },
  { title: say("more"), fields: [
    field("trimStrings", { kind: "lines" }),
    field("minDepth", { kind: "number", min: 0, step: 1 }),
    field("maxDepth", { kind: "number", min: 0, step: 1 }),
    field("runOnEdit", { kind: "check" }),
    field("substituteRegex", { kind: "select", options: [0, 1, 2].map((each) => [each, say(`substitute${each}`)]) }),
  ] },
];

/** Convert a script to the values of the form. Unknown members are kept. */
function shown(script) {
  const { placement = [], markdownOnly, promptOnly, minDepth, maxDepth } = script;
  const form = FORMS[Number(Boolean(markdownOnly)) + 2 * Number(Boolean(promptOnly))];
  const places = Object.entries(PLACES).map(([name, number]) => [name, placement.includes(number)]);
  const depth = (value) => (value >= 0 ? value : null);
  return {
    ...script, ...Object.fromEntries(places), form,
    minDepth: depth(minDepth), maxDepth: depth(maxDepth),
    substituteRegex: Number(script.substituteRegex ?? 0),
  };
}
function written(script, { form, ...changes }) {
  const next = { ...script };
  let places = script.placement ?? [];
  for (const [name, value] of Object.entries(changes)) {
    if (!PLACES[name]) next[name] = value;
    else places = [...places.filter((each) => each !== PLACES[name]), ...(value ? [PLACES[name]] : [])];
  }
  if (form) Object.assign(next, { markdownOnly: /shown|both/.test(form), promptOnly: /prompt|both/.test(form) });
  return { ...next, placement: places };
}

/** Test a script on a text. `run(script)` runs it again. */
function tester(character, signal) {
  const text = control({ kind: "area", rows: 4, most: 100_000, label: say("try"), help: say("try_help") });
  const state = h("p", { role: "status" });
  const result = h("pre.card.tried");
  let script;
  let last = 0;
  const run = settled(() => attempt(async () => {
    const mine = ++last;
    // The test ignores the script's targets.
    const tried = { ...script, disabled: false, markdownOnly: false, promptOnly: false, placement: [2] };
    const wish = { scripts: [tried], text: text.read(), character };
    const { text: after, steps: [step] } = await api.post("/me/regex-scripts/test", wish, { signal });
    if (mine !== last) return;
    state.textContent = wish.text ? say(`state.${step.state}`, { count: step.matches }) : "";
    result.textContent = after;
    result.hidden = !after;
  }), 350, signal);
  result.hidden = true;
  const element = h("div.stack", { oninput: run }, text.element, state, result);
  return { element, run: (next) => ((script = next), run()) };
}

/**
 * A list of scripts.
 *
 * @param {object} options `list`: the scripts; `store(list, isOwn)`: returns a promise of the stored
 *   scripts, `isOwn` is true if the user has added some; `character`: the name of their owner; `signal`.
 */
export function scripts({ list, store, character = "", signal }) {
  const rows = h("ul.list");
  const put = async (next, isOwn = false) => {
    list = await store(next, isOwn);
    draw();
  };
  const open = async (at) => {
    const leaving = new AbortController();
    const trial = tester(character, leaving.signal);
    const form = autoform({
      groups: GROUPS,
      value: shown(list[at]),
      signal: leaving.signal,
      async save(changes) {
        await put(list.with(at, written(list[at], changes)));
        trial.run(list[at]);
      },
    });
    trial.run(list[at]);
    await dialog(name(at), () => h("div.stack", form.element, trial.element), { wide: true });
    leaving.abort();
  };
  const name = (at) => list[at].scriptName || say("unnamed", { n: at + 1 });
  const add = async () => {
    await put([...list, { scriptName: "", findRegex: "", replaceString: "", placement: [2], runOnEdit: true }], true);
    await open(list.length - 1);
  };
  const bring = (files) => attempt(async () => {
    const read = async (file) => {
      try {
        return [JSON.parse(await file.text())].flat();
      } catch {
        return [];
      }
    };
    const found = (await Promise.all(files.map(read))).flat().filter((each) => each?.findRegex);
    if (!found.length) throw new Problem({ title: say("no_file") });
    await put([...list, ...found], true);
  });
  const row = (script, at) => {
    const onchange = ({ target: box }) =>
      attempt(() => put(list.with(at, { ...list[at], disabled: !box.checked })));
    const remove = () => attempt(async () => {
      const said = say("deleted", { name: name(at) });
      await put(list.toSpliced(at, 1));
      const onaction = () => attempt(() => put(list.toSpliced(at, 0, script)));
      toast(said, { action: t("common.undo"), seconds: UNDO_SECONDS, onaction });
    });
    return h("li",
      h("input", { type: "checkbox", role: "switch", checked: !script.disabled, onchange, label: say("use", { name: name(at) }) }),
      h("div.grow",
        h("button.quiet", { onclick: () => attempt(() => open(at)) }, name(at)),
        h("small.help.clip", script.findRegex)),
      act("delete", say("delete", { name: name(at) }), remove, "quiet"));
  };
  const draw = () => fill(rows, list.map(row));
  draw();
  return h("div.stack", rows, h("div.row",
    act("plus", say("add"), () => attempt(add)),
    act("upload", say("import"), () => pick(".json,application/json", bring, true))));
}

/** The scripts of the account. */
export async function accountScripts(signal) {
  const path = "/me/regex-scripts";
  let known = await api.get(path, { signal });
  return scripts({
    list: known.scripts,
    signal,
    async store(list) {
      known = await api.put(path, { scripts: list }, { ifMatch: known.revision });
      return known.scripts;
    },
  });
}

/** The scripts of a character's card, and the switch that allows them. */
export function cardScripts(item, save, signal) {
  const box = h("section");
  const path = `/characters/${item.id}/regex-scripts`;
  const allow = async (allowed) => {
    await api.put(path, { allowed });
    item.scripts_allowed = allowed;
  };
  const of = () => item.extensions.regex_scripts ?? [];
  const consent = h("div");
  const ask = () => fill(consent, of().length > 0 && asked(item.scripts_allowed, allow));
  const list = scripts({
    list: of(),
    character: item.nickname || item.name,
    signal,
    async store(next, isOwn) {
      const before = item.scripts_allowed;
      const isFirst = isOwn && !of().length;
      await save({ extensions: { regex_scripts: next } });
      // The author of a script need not allow it.
      if (before || isFirst) await allow(true);
      ask();
      return of();
    },
  });
  ask();
  fill(box, h("h2", say("title")), h("small.help", say("card_help")), consent, list);
  return box;
}

function asked(allowed, allow) {
  const onchange = async ({ target: box }) => {
    if (!(await attempt(async () => (await allow(box.checked), true)))) box.checked = !box.checked;
  };
  return h("label.row", h("input", { type: "checkbox", role: "switch", checked: Boolean(allowed), onchange }), say("allow"));
}

/** A notice that an imported card contains scripts, which run only after the user allows them. */
export function broughtScripts({ id, extensions }) {
  const count = extensions.regex_scripts?.length;
  if (!count) return null;
  const allow = (allowed) => api.put(`/characters/${id}/regex-scripts`, { allowed });
  return h("div.stack", h("small", say("brought", { count })), asked(false, allow));
}
