/** The members of a chat: in its header, who is there, and what they can do. */
import { api, attempt, fill, h, icon, menu, on, settled, t, toast } from "../core.js";
import { face } from "../library/faces.js";

/** A text about members. */
export const m = (name, values) => t(`members.${name}`, values);

const SHOWN = 5;
const FACES = 3; // of the button that stands for all members
const SIGNS = { absent: "leave", muted: "mute" };

/** Return a handler that refuses to run while a reply is written. */
export const alone = (room, does) => (event) =>
  room.busy ? toast(t("message.wait")) : does(event);

/** True if the members may know different things. */
export const isGroup = ({ members }) => members.length > 1;

/** Join the API's members with their characters. */
export const membersOf = (views, people) =>
  views.map((view) => ({ ...people.find(({ id }) => id === view.character_id), ...view, id: view.character_id }));

/** The picture of a member with a sign of its presence. */
export const likeness = (member, options = { small: true }) =>
  h("span.likeness", { class: member.presence }, face(member, options),
    SIGNS[member.presence] && h("span.sign", icon(SIGNS[member.presence])));

/** Change the presence of a member, or let a character join. */
export async function enter(room, id, body) {
  await api.patch(`/chats/${room.chat.id}/members/${id}`, body);
  await Promise.all([room.refresh(), room.path.reload()]);
}

/** Read the members again when the end of the path has changed, because it says who is there. */
export function seating(room) {
  const { path, signal, events } = room;
  const end = () => path.last()?.id;
  const read = async () => {
    const views = await api.get(`/chats/${room.chat.id}/members`, { signal });
    room.members = membersOf(views, room.people);
    events.dispatchEvent(new Event("chat"));
  };
  const soon = settled(() => read().catch(() => {}), 150, signal);
  let known = end();
  on(path, "change", () => {
    if (room.busy || known === end()) return;
    known = end();
    const hasChanges = room.members.some(({ presence, since }) => since != null || presence !== "present");
    if (hasChanges || path.last()?.presence) soon();
  }, signal);
}

/** Ask how a character joins or returns. */
const ask = async (room, character, isNew) => (await import("./joining.js")).joining(room, character, isNew);

/** The menu of a member. */
export function acts(member, room) {
  const { id, name, presence } = member;
  const item = (text, sign, does) => ({ label: m(text, { name }), icon: sign, act: alone(room, does) });
  const to = (state) => () => attempt(() => enter(room, id, { presence: state }));
  const here = presence !== "absent";
  return [
    ...(here ? [item("speak", "chat", () => room.speak(id))] : []),
    ...(here
      ? [
          presence === "muted" ? item("unmute", "chat", to("present")) : item("mute", "mute", to("muted")),
          item("leave", "leave", to("absent")),
        ]
      : [item("return", "people", to("present")), item("return_told", "people", () => ask(room, member))]),
    null,
    { label: m("knows", { name }), icon: "memory", act: () => room.open("knows", { character: id }) },
    { label: m("card"), icon: "person", act: () => (location.hash = `#/characters/${id}`) },
  ];
}

/** The row of members in the header. `open` opens their panel. */
export function cast(room) {
  const row = h("div.cast", { role: "group", label: m("title") });
  const toggle = ({ currentTarget: { ariaExpanded } }) => room.open(ariaExpanded !== "true" && "members");
  const all = h("button.quiet.crowd", { "data-panel": "members", "aria-expanded": "false", onclick: toggle });
  const one = (member) => {
    const label = m(`states.${member.presence}`, member);
    const onclick = ({ currentTarget }) => menu(currentTarget, acts(member, room));
    const named = { label, title: label, "aria-haspopup": "menu" };
    return h("button.quiet.member", { ...named, onclick }, likeness(member));
  };
  let drawn = "";
  const draw = () => {
    const { members } = room;
    const now = JSON.stringify(members.map(({ id, name, presence, has_avatar: has }) => [id, name, presence, has]));
    if (now === drawn) return;
    drawn = now;
    const rest = members.length - SHOWN;
    const label = m("all", { count: members.length });
    all.title = label;
    fill(all,
      h("span.faces-of", members.slice(0, FACES).map((each) => likeness(each))),
      icon("people"),
      members.length > 1 && h("span.figure", { "aria-hidden": "true" }, members.length),
      h("span.unseen", label));
    fill(row, members.slice(0, rest > 1 ? SHOWN : SHOWN + 1).map(one), all);
  };
  on(room.events, "chat", draw);
  draw();
  return row;
}
