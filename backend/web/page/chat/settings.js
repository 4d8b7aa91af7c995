/** The settings of one chat. What is not set here is as the account says. */
import { api } from "../core/api.js";
import { attempt, undoable } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { autoform } from "../core/form.js";
import { chats, chronicles, lorebooks } from "../core/store.js";
import { has, t } from "../core/words.js";

/** What a chat and an account both have has its name from there. */
const word = (name, values) => t(`${has(`settings.${name}`) ? "settings" : "account"}.${name}`, values);
/** A field whose name is its path in the settings. */
const field = (kind, name, more) => ({ kind, name, label: word(name.split(".").at(-1)), ...more });
const text = (name, placeholder = word("usual"), most = 200_000) =>
  field("area", name, { count: true, most, placeholder });
const select = (name, options, more) => field("select", name, { options, ...more });
const among = (name, ...values) => select(name, values.map((each) => [each, word(each)]));
/** A select of things, or none of them. */
const one = (name, items, more, none = "usual") =>
  select(name, [["usual", word(none)], ...items.map((each) => [each.id, each.title ?? each.name])], more);
const numbers = (group, ranges) =>
  Object.entries(ranges).map(([name, [min, max, step = 1, placeholder = word("usual")]]) =>
    field("number", `${group}.${name}`, { min, max, step, placeholder }));

const DETAILS = {
  keeping: [
    among("enrichment.may_edit_lore", "usual", "on", "off"),
    ...numbers("summary", { words: [50, 2000, 1, 250], interval: [2, 500, 1, 20] }),
  ],
  authors_note: [
    text("authors_note.text", word("note_help"), 20_000),
    ...numbers("authors_note", { depth: [0, 10_000, 1, 4] }),
    among("authors_note.role", "system", "user", "assistant"),
  ],
  instructions: [text("system_prompt"), text("post_history_instructions")],
  sampling: [
    ...numbers("sampling", {
      temperature: [0, 2, "any"], top_p: [0.01, 1, "any"], top_k: [1, 1000], max_output_tokens: [1, 1e6],
      presence_penalty: [-2, 2, "any"], frequency_penalty: [-2, 2, "any"], thinking_budget: [-1, 1e6],
      seed: [0, 2 ** 31 - 1],
    }),
    among("sampling.reasoning_effort", "usual", "none", "minimal", "low", "medium", "high"),
    field("lines", "sampling.stop"),
  ],
  budgets: [
    ...numbers("budgets", {
      total: [1024, 1e7], history: [0, 1e7], retrieval: [0, 1e7], reply_reserve: [1, 1e6],
    }),
    among("memory.enabled", "usual", "on", "off"),
    ...numbers("memory", { max_items: [0, 200, 1, 40], min_relevance: [0, 1, "any"] }),
    among("memory_placement", "after_history", "before_history"),
    among("names", "usual", "on", "off"),
  ],
};
const STATES = { usual: null, on: true, off: false };

/** The panel: all that can be set for a chat, saved as it is typed. */
export default async function (room, { signal }) {
  const { id } = room.chat;
  const path = `/chats/${id}`;
  const own = `${path}/settings`;
  let [{ value: settings, tag }, models, books] = await Promise.all([
    api.get(own, { withTag: true, signal }), api.all("/models"), lorebooks.all(),
  ]);
  // A chat's name and cast have the same revision as its settings, and may be changed beside them.
  room.events.addEventListener("chat", () => (tag = room.chat.revision), { signal });

  const shown = ({ name, kind, options }) => {
    const value = name.split(".").reduce((found, part) => found?.[part], { ...room.chat, ...settings });
    if (kind !== "select") return value;
    const state = Object.keys(STATES).find((each) => STATES[each] === value);
    return state ?? value ?? options[0][0];
  };
  const change = async (what) => {
    await api.patch(path, what);
    chats.changed();
    await room.refresh();
  };

  const main = h("div");
  const details = h("div");
  const draw = async () => {
    const model = models.find((each) => each.id === settings.model) ?? models.find((each) => each.is_default);
    const taken = ({ name }) => !name.startsWith("sampling.") || model?.accepts.includes(name.slice(9));
    const tale = settings.chronicle_id;
    const help = tale && h("a", { href: `#/chronicles/${tale}` }, word("open_chronicle"));
    const basics = [
      { fields: [one("persona_id", room.personas), one("model", models)] },
      {
        fields: [
          field("check", "chronicle_enabled", { wide: true, help: word("chronicle_help") }),
          one("chronicle_id", await chronicles.all(), { help }, "none"),
          one("enrichment.model", models, { label: word("agent") }),
          field("check", "summary.enabled", { label: word("summary"), wide: true, help: word("summary_help") }),
        ],
      },
    ];
    const folded = Object.entries(DETAILS).map(([name, fields]) =>
      ({ title: word(name), fields: fields.filter(taken) }));
    const all = [...basics, ...folded].flatMap(({ fields }) => fields);
    const value = () => Object.fromEntries(all.map((each) => [each.name, shown(each)]));
    const save = async ({ persona_id: persona, ...changes }) => {
      if (persona) await change({ persona_id: persona === "usual" ? null : persona });
      const patch = {};
      for (const [name, now] of Object.entries(changes)) {
        const parts = name.split(".");
        const last = parts.pop();
        const state = STATES[all.find((each) => each.name === name).kind === "select" && now];
        parts.reduce((found, part) => (found[part] ??= {}), patch)[last] =
          state !== undefined ? state : now?.length === 0 ? null : now;
      }
      if (Object.keys(patch).length) {
        const keepalive = JSON.stringify(patch).length < 6e4;
        ({ value: settings, tag } = await api.patch(own, patch, { ifMatch: tag, withTag: true, keepalive }));
      }
      if (patch.summary) await drawSummary();
      const anew = ["model", "chronicle_enabled", "chronicle_id"].find((each) => each in patch);
      if (anew) {
        chronicles.changed();
        await draw();
        main.querySelector(`[name=${anew}]`).focus();
      }
      return value();
    };
    const form = (groups) => autoform({ groups, signal, value: value(), save }).element;
    fill(main, form(basics));
    fill(details, form(folded));
  };

  const summary = h("div.stack");
  const drawSummary = async () => {
    let [found] = (await api.get(`${path}/summaries`, { query: { limit: 1 }, signal })).items;
    if (!found) return fill(summary, settings.summary.enabled && h("p.help", {}, word("no_summary")));
    const label = word("summary_now", { n: found.through_position + 1 });
    const save = async (what) => (found = await api.put(`${path}/summary`, what, { ifMatch: found.revision }));
    const groups = [{ fields: [{ name: "text", kind: "area", count: true, label }] }];
    const hide = (is) => () => (summary.hidden = is);
    const act = async (options) => {
      await api.delete(`${path}/summary`, undefined, options);
      summary.hidden = false;
      if (!signal.aborted) await drawSummary();
    };
    const drop = () => undoable(word("dropped"), { act, hide: hide(true), show: hide(false) });
    fill(summary, autoform({ signal, value: found, groups, save }).element,
      h("div", {}, h("button", { onclick: drop }, word("drop"))));
  };

  /** A list with a select below it that adds what is chosen. */
  const listed = (place, rows, label, items, act) =>
    fill(place, h("ul.list", {}, rows), items.length > 0 &&
      h("select", { "aria-label": label, onchange: ({ target }) => attempt(() => act(target.value)) },
        h("option", { value: "" }, label), items.map((each) => h("option", { value: each.id }, each.name))));
  const away = (name, act) => {
    const label = word("leave", { name });
    return h("button.quiet", { "aria-label": label, title: label, onclick: () => attempt(act) }, icon("close"));
  };

  const lore = h("div.stack");
  const drawLore = async () => {
    const { items } = await api.get(`${path}/lorebooks`, { signal });
    const say = async (book, state) => {
      const where = `${path}/lorebooks/${book}`;
      await (state ? api.put(where, { state }) : api.delete(where));
      await drawLore();
    };
    const row = ({ lorebook: { id: book, name }, source, is_off: off }) => {
      const onchange = () => attempt(() => say(book, off ? source === "chat" && "linked" : "off"));
      const label = word("use", { name });
      return h("li", {},
        h("input", { type: "checkbox", role: "switch", checked: !off, onchange, "aria-label": label }),
        h("a.grow", { href: `#/lorebooks/${book}` }, name),
        h("small.soft", {}, word(`from_${source}`)),
        source === "chat" && away(name, () => say(book)));
    };
    const others = books.filter((each) => !items.some(({ lorebook }) => lorebook.id === each.id));
    listed(lore, items.map(row), word("link"), others, (book) => say(book, "linked"));
  };

  const cast = h("div.stack");
  const drawCast = () => {
    const ids = room.chat.character_ids;
    const put = async (next) => {
      await change({ character_ids: next });
      drawCast();
      await drawLore();
    };
    const row = (each) => h("li", {}, h("a.grow", { href: `#/characters/${each.id}` }, each.name),
      away(each.name, () => put(ids.filter((other) => other !== each.id))));
    const others = room.people.filter((each) => !ids.includes(each.id));
    listed(cast, room.members.map(row), word("join"), others, (other) => put([...ids, other]));
  };

  const remove = () =>
    undoable(word("deleted"), {
      hide: () => (chats.hide(id), (location.hash = "#/")),
      act: async (options) => (await api.delete(path, undefined, options), chats.changed()),
      show: () => chats.hide(id, false),
    });

  drawCast();
  await Promise.all([draw(), drawSummary(), drawLore()]);
  return h("div.settings.stack", {}, main, summary, h("h3", {}, word("characters")), cast,
    h("h3", {}, word("lorebooks")), lore, details,
    h("div", {}, h("button.danger", { onclick: remove }, icon("delete"), word("delete"))));
}
