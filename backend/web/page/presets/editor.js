/** A prompt preset: its blocks in order, the editor of a block, and a preview of the prompt. */
import { samplers } from "../models/sampling.js";
import {
  act, api, attempt, autoform, combine, complain, control, dialog, download, explain, fill, h,
  icon, labels, menu, number, on, settled, t, undoable,
} from "../core.js";
import { at, patchOf } from "../chat/fields.js";

const say = (name, values) => t(`presets.${name}`, values);
const field = (name, more) => ({ name, ...labels(say(name)), ...more });
const choice = (name, ...values) =>
  field(name, { kind: "select", options: values.map((each) => [each, say(`${name}_${each}`)]) });

/** Markers with an editable text. */
const WITH_TEXT = ["system_prompt", "post_history"];
/** Markers that cannot be moved. */
const FIXED = ["history", "memory"];
/** Number of messages that are shown from the start and from the end of a long prompt. */
const SHOWN = 25;

const fieldsOf = ({ marker }) => [
  field("name", { most: 300, wide: true }),
  ...(!marker || WITH_TEXT.includes(marker) ? [field("content", { kind: "area", rows: 8, count: true, most: 200_000, wide: true })] : []),
  ...(FIXED.includes(marker) ? [] : [
    choice("role", "system", "user", "assistant"),
    field("depth", { kind: "number", min: 0, max: 10_000, step: 1 }),
    field("order", { kind: "number", min: -1e6, max: 1e6, step: 1, placeholder: 100 }),
  ]),
  ...(WITH_TEXT.includes(marker) ? [field("forbid_overrides", { kind: "check", wide: true })] : []),
];

/** A preview of a chat's prompt with the preset. `told(tokens)` gets the tokens of each block. */
function preview(chats, draft, told, signal) {
  const options = chats.map(({ id, title }) => [id, title || say("untitled")]);
  const chat = control({ kind: "select", label: say("chat"), options });
  const state = h("p.soft", { role: "status" });
  const list = h("ol.stack.prompt");
  let last = 0;
  const show = async () => {
    const mine = ++last;
    if (!chats.length) return fill(state, say("no_chat"));
    const { blocks, ...rest } = draft();
    // The ids of blocks are unique, so they serve as names here.
    const preset = { ...rest, blocks: blocks.map((each) => ({ ...each, name: each.id })) };
    try {
      const view = await api.post(`/chats/${chat.read()}/context`, { prompt: true, preset }, { signal });
      if (mine !== last) return;
      const tokens = {};
      for (const { block, tokens: each } of view.items) if (block) tokens[block] = (tokens[block] ?? 0) + each;
      tokens.chatHistory = view.totals.history;
      tokens.talekeeperMemory = view.totals.retrieved;
      told(tokens);
      fill(state, say("total", { count: view.totals.prompt }));
      const skipped = Math.max(0, view.prompt.length - 2 * SHOWN);
      const message = ({ role, text }) => h("li.card", h("small.soft", say(`role_${role}`)), h("div.text", { tabindex: 0 }, text));
      fill(list,
        view.prompt.slice(0, SHOWN).map(message),
        skipped > 0 && h("li.soft", say("skipped", { count: skipped })),
        view.prompt.slice(SHOWN + skipped).map(message));
    } catch (error) {
      if (error.name === "AbortError" || mine !== last) return;
      fill(state, explain(error));
      fill(list);
    }
  };
  const soon = settled(show, 500, signal);
  on(chat.input, "change", show);
  const element = h("section", { label: say("prompt") }, h("h2", say("prompt")), chats.length > 0 && chat.element, state, list);
  return { element, soon, show };
}

/** Route: #/presets/ID */
export default async function ({ params: { id }, signal, title }) {
  let [preset, { items: chats }] = await Promise.all([
    api.get(`/presets/${id}`, { signal }),
    api.get("/chats", { query: { limit: 50 }, signal }),
  ]);
  let blocks = preset.blocks;
  let tokens = {};
  let dragged = null;
  const name = (block) => block.name || say(block.marker ? `marker_${block.marker}` : "unnamed");
  const heading = h("h1");
  const named = () => {
    fill(heading, preset.name);
    title(preset.name);
  };
  named();

  const draft = () => {
    const { name: called, sampling, squash_system_messages, lore_placement } = preset;
    return { name: called, sampling, squash_system_messages, lore_placement, blocks };
  };
  const trial = preview(chats, draft, (found) => {
    tokens = found;
    if (dragged == null) draw();
  }, signal);

  const trouble = h("p.trouble", { role: "alert" });
  let running = Promise.resolve();
  const patch = async (changes, options = {}) => {
    try {
      preset = await api.patch(`/presets/${id}`, changes, { ifMatch: preset.revision, keepalive: true, ...options });
      fill(trouble);
    } catch (error) {
      if (error.slug !== "revision-mismatch") throw error;
      // The preset was changed elsewhere. The input stays until the page is loaded again.
      fill(trouble, say("changed_elsewhere"), " ", h("button", { onclick: () => location.reload() }, say("load_again")));
      throw error;
    }
    trial.soon();
  };
  const store = () => (running = running.then(() => patch({ blocks })).catch(complain));
  const later = settled(store, 500);
  signal.addEventListener("abort", later.now, { once: true });
  on(window, "pagehide", later.now, signal);

  const rows = h("ol.list.blocks", { label: say("blocks") });
  const live = h("p.unseen", { role: "status" });
  const change = (next) => {
    blocks = next;
    draw();
    trial.soon();
    later();
  };
  const move = (from, to) => {
    if (to < 0 || to >= blocks.length || from === to) return;
    const moved = blocks[from];
    change(blocks.toSpliced(from, 1).toSpliced(to, 0, moved));
    rows.children[to].querySelector(".grip").focus();
    live.textContent = say("moved", { name: name(moved), place: to + 1, count: blocks.length });
  };
  const edit = async (block) => {
    const leaving = new AbortController();
    const form = autoform({
      groups: [{ fields: fieldsOf(block) }],
      value: { role: "system", ...block },
      signal: leaving.signal,
      async save(changes) {
        // The API leaves out null and default values.
        const next = Object.fromEntries(Object.entries({ ...block, ...changes }).filter(([, value]) => value !== null && value !== ""));
        change(blocks.map((each) => (each.id === block.id ? next : each)));
        block = next;
        later.now();
        await running;
      },
    });
    const help = block.marker && h("p.soft", say(`about_${block.marker}`));
    await dialog(name(block), () => h("div.stack", help, form.element), { wide: true });
    leaving.abort();
    // The button that opened the dialog may have been drawn again.
    [...controls(block.id)].find((each) => each.matches("button"))?.focus();
  };
  const add = () => {
    const block = { id: crypto.randomUUID?.() ?? `own-${Date.now()}`, name: say("fresh_block") };
    const place = blocks.findIndex((each) => each.marker === "history");
    change(blocks.toSpliced(place, 0, block));
    return attempt(() => edit(block));
  };
  const remove = (block) => {
    const place = blocks.indexOf(block);
    undoable(say("deleted", { name: name(block) }), {
      hide: () => change(blocks.filter((each) => each !== block)),
      async act() {},
      show: () => change(blocks.toSpliced(place, 0, block)),
    });
  };
  const row = (block, place) => {
    // A menu, for devices without dragging and arrow keys.
    const ask = (event) => {
      event.preventDefault();
      menu(event.currentTarget, [
        place > 0 && { label: say("up"), act: () => move(place, place - 1) },
        place < blocks.length - 1 && { label: say("down"), act: () => move(place, place + 1) },
      ].filter(Boolean));
    };
    const onkeydown = (event) => {
      if (event.key === "Enter" || event.key === " ") ask(event);
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      move(place, place + step);
    };
    // Not a button, because some browsers cannot drag by a button.
    const label = say("move", { name: name(block) });
    const grip = h("span.grip", { role: "button", tabindex: 0, title: label, label, onkeydown, onclick: ask }, icon("grip"));
    const off = block.enabled === false;
    const onchange = ({ target: box }) =>
      change(blocks.map((each) => (each === block ? { ...block, enabled: box.checked } : each)));
    const item = h("li", { draggable: "true", "data-block": block.id, class: off ? "off" : "" },
      grip,
      h("input", {
        type: "checkbox", role: "switch", checked: !off, onchange, disabled: block.marker === "history",
        label: say("use", { name: name(block) }),
      }),
      h("button.quiet.grow.clip", { onclick: () => attempt(() => edit(block)) }, name(block)),
      h("small.soft", combine([
        block.role && block.role !== "system" && say(`role_${block.role}`),
        block.depth != null && say("at_depth", { depth: block.depth }),
      ], ", ")),
      h("span.figure", !off && tokens[block.id] ? number(tokens[block.id]) : ""),
      !block.marker && act("delete", say("delete", { name: name(block) }), () => remove(block), "quiet"));
    on(item, "dragstart", (event) => {
      dragged = place;
      // Some browsers only drag elements that carry data.
      event.dataTransfer.setData("text/plain", name(block));
    });
    on(item, "dragend", () => (dragged = null));
    on(item, "dragover", (event) => dragged != null && event.preventDefault());
    on(item, "drop", (event) => {
      event.preventDefault();
      const from = dragged;
      dragged = null;
      if (from != null) move(from, place);
    });
    return item;
  };
  const controls = (block) =>
    [...rows.children].find((item) => item.dataset.block === block)?.querySelectorAll("[tabindex], input, button") ?? [];
  const draw = () => fill(rows, blocks.map(row));

  const sampling = samplers();
  const groups = [
    { fields: [
      field("name", { most: 300, required: true, wide: true }),
      choice("lore_placement", "after_history", "as_written"),
      field("squash_system_messages", { kind: "check" }),
    ] },
    ...sampling.groups,
  ];
  const value = Object.fromEntries(groups.flatMap((group) => group.fields).map(({ name: each }) => [each, at(preset, each) ?? null]));
  const form = autoform({
    groups, value, signal,
    async save(changes) {
      later.now();
      await running;
      await patch(patchOf(changes, preset));
      named();
    },
  });
  sampling.suit();
  draw();
  trial.show();
  return h("div.page",
    h("a.row.back", { href: "#/presets" }, icon("left"), say("title")),
    h("header", heading, act("download", say("export"), () => download(`/presets/${id}/export`))),
    trouble,
    h("div.preset",
      h("div.stack",
        h("section", h("h2", say("blocks")), h("p.help", say("blocks_help")), rows, live, act("plus", say("add_block"), add)),
        h("section", h("h2", say("settings")), form.element)),
      trial.element));
}
