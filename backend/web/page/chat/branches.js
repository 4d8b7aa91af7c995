/** Versions of messages, branches, forks, and deletion. */
import { ago, api, chats, commit, dialog, h, sendLater, t, toast, undoable } from "../core.js";

/** A text about messages. */
export const say = (name, values) => t(`message.${name}`, values);

/** Activate a message, with or without the messages after it, and show it. */
export async function lead(room, id, follow = true) {
  await api.post(`/messages/${id}/activate`, { follow });
  await room.path.reload();
}

/** Show a toast about a change of the path, with an action that undoes it. */
export function told(text, { id }, room) {
  toast(text, { action: t("common.undo"), seconds: 12, onaction: () => lead(room, id) });
}

/** Return a message and its siblings in order of creation. */
export const versions = (id) => api.all(`/messages/${id}/siblings`);

/** Let the user choose a version of a message by its first words. */
export async function choose({ id }, room, title) {
  const items = (await versions(id)).filter(({ removed }) => !removed);
  const to = await dialog(title, (close) =>
    h("ul.passages", items.map((item) =>
      h("li", h("button", { onclick: () => close(item.id), "aria-current": item.id === id && "true" },
        h("small.soft", `${item.author} · ${ago(item.created_at)}`), item.text.slice(0, 200))))));
  if (to) await lead(room, to);
}

/** End the path at a message, so that the next line begins a new branch. */
export async function branch(message, room) {
  await lead(room, message.id, false);
  told(say("branched"), message, room);
  room.composer.focus();
}

/** Continue the path below the last message as it was before. */
export async function goOn({ id, position }, room) {
  await lead(room, id);
  if (room.path.total === position + 1) toast(say("nothing"));
}

/** Copy the path up to a message into a new chat, and offer to open it. */
export async function fork(message, room) {
  const world = room.chat.campaign_id ? await askWorld() : "shared";
  if (!world) return;
  await commit();
  const { id } = await api.post(`/chats/${room.chat.id}/fork`, { message_id: message.id, world });
  chats.changed();
  toast(say("forked"), { action: t("common.open"), onaction: () => (location.hash = `#/chats/${id}`) });
}

/** Ask whether the copy of a chat stays in its campaign. */
const askWorld = () =>
  dialog(say("fork"), (close) =>
    h("div.stack",
      h("p", say("world")),
      h("footer",
        h("button", { onclick: () => close("copy") }, say("world_copy")),
        h("button", { onclick: () => close("shared"), autofocus: true }, say("world_shared")))));

/** Delete messages without those below them, unless the user undoes it. */
export function erase(messages, room) {
  const { path } = room;
  const reload = () => room.signal.aborted || room.busy || path.reload();
  sendLater(say("deleted", { count: messages.length }), messages.map(({ id }) => `/messages/${id}`), {
    query: { alone: true },
    show: reload,
    then: reload,
  });
}

/**
 * Delete a message and all messages below it, unless the user undoes it.
 * The path leaves the message at once, on the server as well, so that new lines have the visible
 * parent.
 */
export async function remove({ id, position, sibling, parent_id: parent }, room) {
  const { path } = room;
  const others = (await versions(id)).filter((item) => item.id !== id);
  const heir = others[sibling - 2] ?? others[0];
  const own = `/messages/${id}`;
  const count = path.total - position;
  if (!heir && !parent) return sendLater(say("deleted", { count }), own, { hides: [path.address] });
  await lead(room, heir?.id ?? parent, Boolean(heir));
  undoable(say("deleted", { count }), {
    hide() {},
    async act(options) {
      // If the user has returned to the message, it is kept.
      if (path.at(position)?.id === id) return;
      await api.delete(own, undefined, options);
      if (!room.busy) path.reload();
    },
    show: () => lead(room, id),
  });
}
