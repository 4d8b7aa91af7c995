/** The pictures behind the messages of chats: drawing one, and the field that sets one. */
import { act, api, attempt, backgrounds, h, progress, refill, set, t, undoable } from "../core.js";
import { dropping, pick } from "../core/importing.js";

const say = (name) => t(`background.${name}`);
const pathOf = (kind, id) => `/${kind}s/${id}/background`;

/** The address of a background. A new picture has another one. */
const addressOf = ({ id, chat_id, character_id }) =>
  api.url(`${chat_id ? pathOf("chat", chat_id) : pathOf("character", character_id)}?v=${id}`);

/** Show the chat's background behind `reading`, or that of its first member who has one. */
export function backdrop(room, reading) {
  const picture = h("img.backdrop", { alt: "", hidden: true });
  const draw = async () => {
    const all = await backgrounds.all().catch(() => []);
    const ofMember = ({ id }) => all.find((each) => each.character_id === id);
    const found = all.find((each) => each.chat_id === room.chat.id) ?? room.members.map(ofMember).find(Boolean);
    const src = found && addressOf(found);
    reading.classList.toggle("pictured", Boolean(found));
    if (src !== picture.getAttribute("src")) set(picture, { src, hidden: !found });
  };
  reading.prepend(picture);
  room.events.addEventListener("chat", draw);
  addEventListener("backgrounds-changed", draw, { signal: room.signal });
  draw();
}

/** The background of a chat or a character, and buttons that set and remove it. */
export async function backgroundOf(kind, id, signal) {
  const path = pathOf(kind, id);
  const box = h("div.stack.background");
  let shown;
  const draw = async () => {
    const found = (await backgrounds.all()).find((each) => each[`${kind}_id`] === id);
    shown = found?.id;
    refill(box,
      found && h("img", { src: addressOf(found), alt: say("shown") }),
      h("div.row",
        act("upload", say(found ? "change" : "choose"), choose),
        found && act("delete", say("remove"), () => remove(found), "quiet")));
  };
  const put = async ([file]) => {
    const bar = progress(say("sending"));
    box.append(bar.element);
    const onprogress = (share) => bar.show(share < 1 ? share : null);
    const sent = await attempt(async () => {
      await api.upload(path, file, { method: "PUT", onprogress });
      return true;
    });
    bar.element.remove();
    if (sent) backgrounds.changed();
  };
  const choose = () => pick("image/png,image/jpeg,image/webp,image/gif", put);
  const remove = (found) =>
    undoable(say("removed"), {
      hide: () => backgrounds.hide(found.id),
      async act(options) {
        // Another picture may have been set in the meantime.
        if (shown) return;
        await api.delete(path, undefined, options);
        backgrounds.changed();
      },
      show: () => backgrounds.hide(found.id, false),
    });
  dropping(box, box, put, signal);
  addEventListener("backgrounds-changed", draw, { signal });
  await draw();
  return h("section", h(kind === "chat" ? "h3" : "h2", say("title")), h("small.help", say(`help_${kind}`)), box);
}
