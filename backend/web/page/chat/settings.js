/** The settings of a chat. Unset values come from the account. */
import {
  act, api, autoform, campaigns, chats, chronicles, control, fill, h, lorebooks, menu, on, t,
} from "../core.js";
import { picker } from "../models/picker.js";
import { dropped, removed, samplers } from "../models/sampling.js";
import { tasks } from "../models/tasks.js";
import { backgroundOf } from "./background.js";
import { isGroup } from "./cast.js";
import { tagsField } from "./entry.js";
import { exports } from "./exports.js";
import { among, at, field, NOTE, numbers, patchOf, text, word } from "./fields.js";
import { groupFields } from "./group.js";
import { joining } from "./joining.js";
import { replyEditor } from "./reply-editor.js";
import { summaries } from "./summaries.js";

/** A select of objects, with an option for none of them. */
const one = (name, items, more, none = null) => {
  const options = items.map((each) => [each.id, each.title ?? each.name]);
  return field("select", name, { options: [[null, word(none)], ...options], ...more });
};
const onOrOff = (name) => among(name, null, true, false);
const DETAILS = {
  keeping: [
    onOrOff("enrichment.may_edit_lore"),
    ...numbers("summary", { words: [50, 2000, 250], interval: [2, 500, 20] }),
  ],
  authors_note: NOTE,
  instructions: ["scenario", "system_prompt", "post_history_instructions"].map((name) => text(name, 200_000)),
  quick_replies: [{ name: "quick_replies", control: replyEditor }],
  budgets: [
    ...numbers("budgets", {
      total: [1024, 1e7], history: [0, 1e7], retrieval: [0, 1e7], reply_reserve: [1, 1e6],
    }),
    ...["enabled", "rephrase"].map((name) => onOrOff(`memory.${name}`)),
    ...numbers("memory", { max_items: [0, 200, 40], min_relevance: [0, 1] }),
    among("memory_placement", "after_history", "before_history"),
    among("lore_placement", "after_history", "as_written"),
    among("lore.member_books", "speaker", "all"),
    onOrOff("names"),
    onOrOff("keep_other_speakers"),
    onOrOff("expand_macros"),
    field("number", "reasoning_sent", { min: 0, max: 50, step: 1, placeholder: 0 }),
  ],
};

/** The settings panel. Changes are saved while the user types. */
export default async function (room, { signal }) {
  const { id } = room.chat;
  const path = `/chats/${id}`;
  const own = `${path}/settings`;
  let [settings, account, models, books, worlds, presets, tags] = await Promise.all([
    api.get(own, { signal }), api.get("/me/settings", { signal }), api.all("/models"), lorebooks.all(),
    campaigns.all(), api.all("/presets", { signal }), tagsField(),
  ]);
  const world = room.chat.campaign_id;
  const players = world ? await api.all(`/campaigns/${world}/entities`, { query: { kind: "pc" }, signal }) : [];
  account.model ??= models.find((each) => each.is_default)?.id;

  const stored = ({ name, options }) =>
    at({ ...settings, persona_id: room.chat.persona_id, campaign_id: room.chat.campaign_id }, name) ?? options?.[0][0];
  /** A field that shows the account's value while the chat has none. */
  const telling = ({ options, ...field }) => {
    const value = stored({ ...field, options });
    const usual = at(account, field.name);
    const named = options?.find(([each]) => each === usual);
    if (usual != null && !options) field.placeholder = usual;
    if (named) options = options.with(0, [null, word("usual_is", { value: named[1] })]);
    // The chosen model no longer exists.
    if (options?.every(([each]) => each !== value)) options = [...options, [value, word("gone", { value })]];
    return { options, ...field };
  };

  const change = async (what) => {
    await api.patch(path, what);
    await room.refresh();
  };
  /** A patch contains only the changes, so that changes from other windows are kept. */
  const write = async (patch) => {
    const before = settings;
    const gone = "model" in patch ? dropped(modelOf(patch.model), before.sampling) : {};
    settings = await api.patch(own, { ...patch, sampling: { ...patch.sampling, ...gone } }, { keepalive: true });
    form.put(sampling.named(gone));
    suit();
    removed(modelOf(patch.model), gone, before, restore);
    room.events.dispatchEvent(new CustomEvent("settings", { detail: settings }));
    if ("chronicle_enabled" in patch || "chronicle_id" in patch) {
      chronicles.changed();
      await drawTale();
    }
    if (patch.summary) await drawSummary();
    if ("tags" in patch) chats.changed();
  };
  const restore = async (patch) => {
    await write(patch);
    form.put({ model: patch.model, ...sampling.named(patch.sampling) });
    suit();
  };
  const save = async ({ persona_id: persona, campaign_id: campaign, ...changes }) => {
    if (persona !== undefined) await change({ persona_id: persona });
    if (campaign !== undefined) {
      await change({ campaign_id: campaign });
      campaigns.changed();
    }
    await write(patchOf(changes, settings));
  };

  const sampling = samplers();
  const work = tasks(models);
  const modelOf = (id) => models.find((each) => each.id === (id ?? account.model));
  /**
   * Show the sampling settings that the model supports. The account's sampling applies to its own
   * model only.
   */
  const suit = () => {
    sampling.suit(modelOf(settings.model), settings.model ? {} : account.sampling);
    work.suit([settings, account], settings.model ?? account.model);
  };

  const tale = h("div.field.wide");
  const drawTale = async () => {
    const { chronicle_id: chosen = null, chronicle_enabled: keeps } = settings;
    const help = chosen && h("a", { href: `#/chronicles/${chosen}` }, word("open_chronicle"));
    const none = keeps ? "new_chronicle" : "none";
    const made = control(one("chronicle_id", await chronicles.all(), { help }, none));
    made.write(chosen);
    made.input.onchange = () => write({ chronicle_id: made.read() });
    fill(tale, made.element);
  };

  const summary = h("div.stack");
  const drawSummary = () => summaries(room, summary, { signal });

  /** A list with a select below it that adds the chosen item. */
  const listed = (where, rows, label, items, add) =>
    fill(where, rows.length > 0 && h("ul.list", rows), items.length > 0 &&
      h("select", { label, onchange: ({ target }) => add(target.value) },
        h("option", { value: "" }, label), items.map((each) => h("option", { value: each.id }, each.name))));
  const away = (name, leave) => act("close", word("leave", { name }), leave, "quiet");

  const lore = h("div.stack");
  const drawLore = async () => {
    const { items } = await api.get(`${path}/lorebooks`, { signal });
    const say = async (book, state) => {
      const where = `${path}/lorebooks/${book}`;
      await (state ? api.put(where, { state }) : api.delete(where));
      await drawLore();
    };
    const row = ({ lorebook: { id: book, name }, source, is_off: off }) => {
      const onchange = () => say(book, off ? null : "off");
      const named = { label: word("use", { name }) };
      // Lorebooks that are linked to this chat can be removed. Others can be switched off for it.
      const here = source === "chat";
      return h("li",
        !here && h("input", { type: "checkbox", role: "switch", checked: !off, onchange, ...named }),
        h("a.grow", { href: `#/lorebooks/${book}` }, name),
        h("small.soft", word(`from_${source}`)),
        here && away(name, () => say(book)));
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
    const row = (each) => h("li", h("a.grow", { href: `#/characters/${each.id}` }, each.name),
      away(each.name, () => put(ids.filter((other) => other !== each.id))));
    const others = room.people.filter((each) => !ids.includes(each.id));
    const add = async (other) => {
      drawCast();
      // In a chat that has begun, it matters what the character knows.
      if (!room.path.total) return put([...ids, other]);
      await joining(room, others.find((each) => each.id === other), true);
      drawCast();
      await drawLore();
    };
    listed(cast, room.members.map(row), word("join"), others, add);
  };

  const basics = [one("persona_id", room.personas), one("model", models, { models, control: picker })];
  if (presets.length) basics.push(one("preset_id", presets, { wide: true }));
  if (worlds.length) basics.push(one("campaign_id", worlds, { wide: true }, "none"));
  if (world) {
    const everyone = { id: "public", name: word("everyone") };
    basics.push(one("viewpoint", [everyone, ...players], { wide: true }, "game_master"));
  }
  basics.push({ ...tags, wide: true });
  const keeping = [
    field("check", "chronicle_enabled", { wide: true }),
    { name: "tale", control: () => ({ element: tale, read: () => null, write() {}, fault() {} }) },
    field("check", "summary.enabled", { wide: true }, "summary"),
  ];
  const folds = Object.entries(DETAILS).map(([name, fields]) => ({ title: word(name), fields }));
  const ensemble = isGroup(room) ? [{ title: word("group"), open: true, fields: groupFields(room.members) }] : [];
  const groups = [{ fields: basics }, { fields: keeping }, ...ensemble, { title: word("tasks"), fields: work.fields }, ...folds.toSpliced(-1, 0, ...sampling.groups)].map(
    ({ fields, ...group }) => ({ ...group, fields: fields.map(telling) }));
  const fields = groups.flatMap((group) => group.fields);
  const value = Object.fromEntries(fields.map((each) => [each.name, stored(each)]));
  const form = autoform({ groups, signal, value, save });
  suit();
  // The model was changed with the button under the chat's name.
  const chosen = ({ detail }) => {
    settings = detail;
    form.put({ model: settings.model ?? null, ...sampling.named(settings.sampling, true) });
    suit();
  };
  on(room.events, "model", chosen, signal);
  drawCast();
  await Promise.all([drawTale(), drawSummary(), drawLore()]);
  const remove = () => {
    chats.remove(id, room.chat.title || t("chats.untitled"));
    location.hash = "#/";
  };
  const saving = act("download", t("common.export"), ({ currentTarget }) => menu(currentTarget, exports(room.chat)));
  return h("div.settings.stack",
    h("h3", word("characters")), cast,
    h("h3", word("lorebooks")), lore,
    form.element, summary, await backgroundOf("chat", id, signal),
    h("nav.stack", { label: word("for_all") },
      h("h3", word("for_all")),
      h("p.row", ["settings", "providers", "presets", "scripts"].map((name) =>
        h("a", { href: `#/${name}` }, word(`areas.${name}`))))),
    h("div.row", saving, act("delete", word("delete"), remove, "danger")));
}
