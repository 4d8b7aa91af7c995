/** Who knows a message: its mark, and the dialog that changes it. */
import { api, dialog, h, icon, list, sendform } from "../core.js";
import { audience } from "../core/audience.js";
import { m } from "./cast.js";

/** The people of the campaign of a chat, requested once. */
async function played(room) {
  const { campaign_id: id } = room.chat;
  if (!id) return [];
  room.entities ??= api.all(`/campaigns/${id}/entities`, { signal: room.signal }).catch(() => {
    room.entities = null;
    return [];
  });
  return (await room.entities).filter(({ kind }) => kind === "pc" || kind === "npc");
}

/** The names of ids, or undefined if one is not known yet. */
const namesOf = (ids, known) => {
  const names = ids.map((id) => known.find((each) => each.id === id)?.name);
  return names.every(Boolean) ? names : undefined;
};

/** The mark of a message that not everyone knows, or false. */
export function mark({ audience, role }, room) {
  if (audience === "public") return false;
  const kind = role === "user" ? "whispered" : "known";
  const say = (names) => m(kind, { names: list(names) });
  if (!Array.isArray(audience)) return h("span.tag", icon("whisper"), m("narrator_only"));
  const words = h("span");
  const tag = h("span.tag.whispered", icon("whisper"), words);
  const names = namesOf(audience, room.people);
  words.textContent = say(names ?? [m("somebody")]);
  if (!names) {
    played(room).then((entities) => {
      const known = [...room.people, ...entities];
      const found = [...new Set(audience.map((id) => known.find((each) => each.id === id)?.name ?? m("somebody")))];
      words.textContent = say(found);
    }, () => {});
  }
  return tag;
}

/** Let the user choose who knows a message. */
export async function share(message, room) {
  const entities = await played(room);
  // An entity that a member plays is the member.
  const members = room.members.map(({ id, name }) => [id, name]);
  const own = new Set(room.members.map(({ id }) => id));
  const others = entities.filter(({ character_id: id }) => !own.has(id)).map(({ id, name }) => [id, name]);
  const field = audience([...members, ...others]);
  await dialog(m("share"), (close) =>
    sendform({
      fields: [{ ...field, value: message.audience }],
      submit: m("share_save"),
      async send(values) {
        room.path.put(await api.patch(`/messages/${message.id}`, values));
        close();
      },
      extra: h("p.soft", m("share_help")),
    }).element);
}
