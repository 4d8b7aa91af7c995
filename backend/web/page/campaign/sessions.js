/** The chats of a campaign. */
import { act, ago, api, campaigns, chats, fill, h, menu, on, t, toast, UNDO_SECONDS } from "../core.js";
import { c } from "./parts.js";

/** The sessions, latest first. Chats can be added and removed. */
export default async function (it, { signal }) {
  const list = h("ul.list", { label: c("tabs.sessions") });
  const note = h("p.empty", c("no_sessions"));
  const name = (chat) => chat.title || t("chats.untitled");
  const put = async (chat, campaign_id) => {
    await api.patch(`/chats/${chat.id}`, { campaign_id });
    campaigns.changed();
    chats.changed();
  };
  const leave = async (chat) => {
    await put(chat, null);
    const onaction = () => put(chat, it.id);
    toast(c("left", { name: name(chat) }), { action: t("common.undo"), seconds: UNDO_SECONDS, onaction });
  };
  const row = (chat) => h("li",
    h("div.grow",
      h("a.clip", { href: `#/chats/${chat.id}?panel=world` }, name(chat)),
      h("small.soft", ago(chat.updated_at))),
    act("close", c("leave", { name: name(chat) }), () => leave(chat), "quiet"));
  const draw = async () => {
    const own = (await chats.all()).filter((chat) => chat.campaign_id === it.id);
    fill(list, own.map(row));
    note.hidden = own.length > 0;
  };
  const join = async ({ currentTarget: button }) => {
    const others = (await chats.all()).filter((chat) => chat.campaign_id !== it.id);
    menu(button, others.map((chat) => ({ label: name(chat), act: () => put(chat, it.id) })));
  };
  on(window, "chats-changed", draw, signal);
  chats.drop();
  await draw();
  return h("section.stack", note, list, h("div", act("link", c("join"), join)));
}
