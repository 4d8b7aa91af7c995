/** The panel of what a member knows: its memories, its summary, and a search with its eyes. */
import {
  act, api, attempt, complain, control, deleting, fill, h, isPending, more, on, searchMemory,
  sendLater, settled, t,
} from "../core.js";
import { finding, passage } from "../core/passage.js";
import { asking, EVENT, m as memory, signals } from "../memory/parts.js";
import { likeness } from "./cast.js";
import { summaries } from "./summaries.js";

const k = (name, values) => t(`knows.${name}`, values);
const PAGE = 50;
const FOUND = 10;
const SHOWN = 300;
const INPUT_PAUSE = 400; // milliseconds

export default async function (room, { options: { character: id }, signal }) {
  const member = room.members.find((each) => each.id === id) ?? room.members[0];
  if (!member) return h("p.empty", k("nobody"));
  const { name } = member;
  const chat = `/chats/${room.chat.id}`;
  const next = signals(signal);

  const who = control({ kind: "select", name: "member", label: k("who"), options: room.members.map((each) => [each.id, each.name]) });
  who.write(member.id);
  who.input.onchange = () => room.open("knows", { character: who.read() });

  // What it finds.
  const found = h("div", { "aria-live": "polite" });
  const search = settled(() => attempt(async () => {
    const q = input.value.trim();
    const ending = next();
    if (!q) return fill(found);
    const query = { q, chat_id: room.chat.id, viewpoint: member.id, limit: FOUND };
    const { items } = await searchMemory(query, ending);
    if (ending.aborted) return;
    const find = finding(q);
    const line = ({ kind, text, title, position }) => h("li",
      h("small.soft", position == null ? [memory(`places.${kind}`), title && `: ${title}`]
        : h("a", { href: `#${chat}?at=${position}` }, t("find.at", { author: title, n: position + 1 }))),
      h("p.prose", passage(text, find, SHOWN)));
    fill(found, items.length ? h("ol.deeds", items.map(line)) : h("p.soft", k("nothing", { name })));
  }), INPUT_PAUSE, signal);
  const label = k("search", { name });
  const input = h("input", { type: "search", label, placeholder: label, maxlength: 200, oninput: search });

  // What it remembers.
  const list = h("ul.deeds", { label: k("memories") });
  const empty = h("p.soft", { hidden: true }, k("none", { name }));
  const rest = h("button", { hidden: true, onclick: () => attempt(() => read(true)) }, t("common.more"));
  let events = [];
  let after = null;
  const read = async (isMore) => {
    const query = { chat_id: room.chat.id, limit: PAGE, after: isMore ? after : null };
    const page = await api.get(`/characters/${member.id}/memories`, { query, signal });
    events = isMore ? [...events, ...page.items] : page.items;
    after = page.next;
    draw();
  };
  const path = ({ chronicle_id: chronicle, id: event }) => `/chronicles/${chronicle}/events/${event}`;
  const edit = async (event) => {
    const send = (values) => api.patch(path(event), values, { ifMatch: event.revision });
    if (await asking(`event.${event.id}.${event.revision}`, t("common.edit"), EVENT, event, send)) await read();
  };
  const remove = (event) => sendLater(memory("deleted"), path(event), { then: () => read() });
  const line = (memory) => {
    const { event, source } = memory;
    const { chat_id: home, chat_title: title, position } = source;
    const href = `#/chats/${home}${position == null ? "" : `?at=${position}`}`;
    const isHere = home === room.chat.id && position != null;
    const words = isHere ? k("here", { n: position + 1 }) : k("elsewhere", { title: title || t("chats.untitled") });
    const from = home && h("a", { href }, words);
    return h("li",
      h("header.row", h("small.soft.grow", from || k("by_hand")),
        more(k("acts", { name: event.summary.slice(0, 80) }), [
          { label: t("common.edit"), icon: "edit", act: () => attempt(() => edit(event)) },
          deleting(() => remove(event)),
        ])),
      h("p.prose", event.summary));
  };
  const draw = () => {
    const shown = events.filter(({ event }) => !isPending(path(event)));
    fill(list, shown.map(line));
    rest.hidden = !after;
    empty.hidden = shown.length > 0;
  };
  const add = () => attempt(async () => {
    const send = (values) => api.post(`/characters/${member.id}/memories`, { ...values, chat_id: room.chat.id });
    const fields = [{ ...EVENT[0], name: "text" }];
    if (await asking(`memory.${room.chat.id}.${member.id}`, k("add"), fields, {}, send)) await read();
  });

  // Its summary.
  const summary = h("div.stack");
  const tell = async () => {
    const count = await summaries(room, summary, { viewpoint: member.id, signal });
    if (!count) fill(summary, h("p.soft", k("no_summary")));
  };

  // What it keeps.
  const keeps = control({ kind: "check", name: "keeps_memories", label: k("keeps"), help: k("keeps_help", { name }) });
  keeps.input.onchange = () => attempt(async () => {
    try {
      await api.patch(`/characters/${member.id}`, { keeps_memories: keeps.read() }, { keepalive: true });
      await read();
    } catch (error) {
      keeps.write(!keeps.read());
      throw error;
    }
  });
  const card = async () => keeps.write((await api.get(`/characters/${member.id}`, { signal })).keeps_memories);

  on(window, "pending", draw, signal);
  on(room.events, "turn", () => read().catch(complain), signal);
  await Promise.all([read(), tell(), card()]);
  const part = (title, ...content) => h("section.stack", h("h3", k(title)), content);
  return h("div.stack",
    h("div.row", likeness(member, {}), h("div.grow", who.element), h("a.button", { href: `#/characters/${member.id}` }, t("members.card"))),
    member.narrates && h("p.soft", k("narrates", { name })),
    h("div.stack", { role: "search" }, input, found),
    part("memories", list, empty, rest, h("div.row", act("plus", k("add"), add))),
    part("summary", summary),
    keeps.element,
    h("p", h("a", { href: `#${chat}?panel=context&viewpoint=${member.id}` }, k("preview", { name }))));
}
