/** A chat in the list, and the actions of its menu. */
import {
  act, api, attempt, chats, commit, deleting, h, icon, menu, t, tagKey, timed, toast, usedAt,
} from "../core.js";
import { plain } from "../core/passage.js";
import { face } from "../library/faces.js";
import { asking } from "../library/parts.js";
import { exports } from "./exports.js";

/** The title of a chat, or a text in its place. */
export const titleOf = (chat) => chat.title || t("chats.untitled");

/** Change a chat, and show it. */
export async function patch({ id }, changes) {
  const chat = await api.patch(`/chats/${id}`, changes);
  chats.put(chat);
  return chat;
}

/** The field for the tags of a chat, with the tags of all chats for completion. */
export const tagsField = async () => {
  const known = [...new Set((await chats.all()).flatMap(({ tags }) => tags))];
  return { name: "tags", kind: "words", label: t("chats.tags"), known, most: 2000 };
};

/** Ask for tags. `send` gets the list. */
export const askTags = async (tags, send) => {
  const field = { ...(await tagsField()), value: tags };
  return asking(t("chats.tags"), field, t("common.save"), ({ tags: chosen }) => send(chosen));
};

function rename(chat) {
  const [label, help] = [t("chats.name"), t("chats.name_help")];
  const field = { name: "title", label, help, value: chat.title, most: 300 };
  asking(t("chats.rename"), field, t("common.save"), (values) => patch(chat, values));
}

async function duplicate({ id }) {
  await commit();
  const copy = await api.post(`/chats/${id}/duplicate`);
  chats.changed();
  const onaction = () => (location.hash = `#/chats/${copy.id}`);
  toast(t("chats.duplicated", { title: copy.title }), { action: t("common.open"), onaction });
}

async function archive(chat, archived) {
  await patch(chat, { archived });
  if (!archived) return;
  const onaction = () => attempt(() => patch(chat, { archived: false }));
  toast(t("chats.archived", { count: 1 }), { action: t("common.undo"), onaction });
}

function menuOf(chat) {
  const { pinned_at: pin, archived_at: isArchived } = chat;
  const does = (act) => () => attempt(act);
  return [
    { label: t(pin ? "chats.unpin" : "chats.pin"), icon: "pin", act: does(() => patch(chat, { pinned: !pin })) },
    { label: t("chats.rename"), icon: "edit", act: () => rename(chat) },
    { label: t("chats.tags"), icon: "tag", act: () => askTags(chat.tags, (tags) => patch(chat, { tags })) },
    { label: t("chats.duplicate"), icon: "copy", act: does(() => duplicate(chat)) },
    { label: t(isArchived ? "chats.unarchive" : "chats.archive"), icon: "archive", act: does(() => archive(chat, !isArchived)) },
    null,
    ...exports(chat),
    null,
    deleting(() => chats.remove(chat.id, titleOf(chat))),
  ];
}

const namesOf = (cast) => cast.map((each) => each.name).join(", ");

/** The text of a chat that a search looks at. */
export const textOf = (chat, cast) =>
  [titleOf(chat), namesOf(cast), plain(chat.preview), ...chat.tags.map(tagKey)].join("\n");

/** A chat of the list. */
export function entry(chat, cast, box) {
  const title = titleOf(chat);
  const names = namesOf(cast);
  const shown = cast.length ? cast : [{ name: title }];
  const preview = plain(chat.preview);
  return h(
    "li",
    box,
    h("span.faces", shown.slice(0, 2).map((each) => face(each))),
    h(
      "div.grow",
      h("div.head",
        h("a.clip", { href: `#/chats/${chat.id}` }, title),
        chat.pinned_at && h("span.pinned", { role: "img", label: t("chats.pinned") }, icon("pin")),
        timed(usedAt(chat), "figure")),
      names !== title && h("small.soft.clip", names),
      preview && h("small.clip", preview),
      chat.tags.length > 0 && h("span.row", chat.tags.map((each) => h("span.tag", each))),
    ),
    act("more", t("chats.more", { title }), ({ currentTarget }) => menu(currentTarget, menuOf(chat)), "quiet"),
  );
}
