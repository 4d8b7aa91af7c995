/** Where the path goes: versions of a message, branches, and what is deleted. */
import { api } from "../core/api.js";
import { attempt, dialog, sure, toast, undoable } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { chats } from "../core/store.js";
import { ago, t } from "../core/words.js";

/** Lead the path through a message, or let it end there; show what differs from a position on. */
export async function lead(room, from, id, follow = true) {
  await api.post(`/messages/${id}/activate`, { follow });
  await room.path.reload(from);
}

/** Tell what was done to the path, and how to have it lead through that message again. */
export function told(text, { id, position }, room) {
  const onaction = () => attempt(() => lead(room, position, id));
  toast(text, { action: t("common.undo"), seconds: 12, onaction });
}

/** A message and its siblings, in the order they were made. */
export const versions = async (id) => (await api.get(`/messages/${id}/siblings`)).items;

/** Let a person choose among the versions of a message by their first words. */
export async function choose({ id, position }, room, title) {
  const items = await versions(id);
  const line = (close) => (item) =>
    h("li", {}, h("button", { onclick: () => close(item.id), "aria-current": item.id === id && "true" },
      h("small.soft", {}, `${item.author} · ${ago(item.created_at)}`), item.text.slice(0, 200)));
  const to = await dialog(title, (close) => h("ul.passages", {}, items.map(line(close))));
  if (to) await lead(room, position, to);
}

/** Let the path end at a message, so that a new line begins another branch. */
export async function branch(message, room) {
  await lead(room, message.position, message.id, false);
  told(t("message.branched"), message, room);
  room.composer.focus();
}

/** Go on below the last message with what stood there before. */
export async function goOn({ id, position }, room) {
  await lead(room, position, id);
  if (room.path.total === position + 1) toast(t("message.nothing"));
}

/** Copy the path that ends at a message into a chat of its own, and offer to go there. */
export async function fork(message, room) {
  const { id } = await api.post(`/chats/${room.chat.id}/fork`, { message_id: message.id });
  chats.changed();
  toast(t("message.forked"), { action: t("common.open"), onaction: () => (location.hash = `#/chats/${id}`) });
}

/**
 * Delete a message with all below it, unless it is undone. The path leaves it at once, on the
 * server, too: what is said meanwhile stands where it is seen to stand.
 */
export async function remove({ id, position, parent_id: parent }, room) {
  const items = await versions(id);
  const at = items.findIndex((item) => item.id === id);
  const heir = items[at - 1] ?? items[at + 1];
  const act = async (options) => {
    await api.delete(`/messages/${id}`, undefined, options);
    if (!room.signal.aborted) await room.path.reload(position);
  };
  if (!heir && !parent) return (await sure(t("message.delete"), t("message.all"), t("common.delete"))) && act();
  let left;
  undoable(t("message.deleted", { count: room.path.total - position }), {
    act,
    hide() {
      room.path.cut(position);
      left = attempt(() => lead(room, position, heir?.id ?? parent, Boolean(heir)));
    },
    show: () => left.then(() => attempt(() => lead(room, position, id))),
  });
}
