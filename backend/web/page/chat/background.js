/** The pictures behind the messages of chats: drawing one, and the field that sets one. */
import { act, api, backgrounds, fill, h, isPending, on, set, t } from "../core.js";
import { picture } from "../core/picture.js";

const say = (name) => t(`background.${name}`);
const pathOf = (kind, id) => `/${kind}s/${id}/background`;
const holderPath = ({ chat_id: chat, character_id: character }) => (chat ? pathOf("chat", chat) : pathOf("character", character));

/** The address of a background. A new picture has another one. */
const addressOf = (item) => api.url(`${holderPath(item)}?v=${item.id}`);

/** Show the chat's background behind `reading`, or that of its first member who has one. */
export function backdrop(room, reading) {
  const picture = h("img.backdrop", { alt: "", hidden: true });
  const draw = async () => {
    const stored = await backgrounds.all().catch(() => []);
    const all = stored.filter((each) => !isPending(holderPath(each)));
    const ofMember = ({ id }) => all.find((each) => each.character_id === id);
    const found = all.find((each) => each.chat_id === room.chat.id) ?? room.members.map(ofMember).find(Boolean);
    const src = found && addressOf(found);
    reading.classList.toggle("pictured", Boolean(found));
    if (src !== picture.getAttribute("src")) set(picture, { src, hidden: !found });
  };
  reading.prepend(picture);
  on(room.events, "chat", draw);
  on(window, "backgrounds-changed pending", draw, room.signal);
  draw();
}

/** The background of a chat or a character, and buttons that set and remove it. */
export async function backgroundOf(kind, id, signal) {
  const box = h("div.stack.background");
  let found;
  const draw = async () => {
    found = (await backgrounds.all()).find((each) => each[`${kind}_id`] === id);
    const is = own.has();
    fill(box,
      is && h("img", { src: addressOf(found), alt: say("shown") }),
      h("div.row",
        act("upload", say(is ? "change" : "choose"), own.choose),
        is && act("delete", say("remove"), own.remove, "quiet")));
  };
  const own = picture(pathOf(kind, id), box, { has: () => Boolean(found), draw, changed: backgrounds.changed, removed: say("removed"), signal });
  on(window, "backgrounds-changed", draw, signal);
  await draw();
  return h("section", h(kind === "chat" ? "h3" : "h2", say("title")), h("small.help", say(`help_${kind}`)), box);
}
