/** The world panel of a chat, for the active path. */
import { api, attempt, commit, complain, h, kept, on, settled, toast } from "../core.js";
import { c } from "./parts.js";
import { proposals } from "./proposals.js";
import { sections } from "./sections.js";
import { World } from "./world.js";

/** The panel. It is updated after turns, swipes, edits and deletions. */
export default async function (room, { signal }) {
  const { campaign_id: id } = room.chat;
  if (!id) {
    const href = `#/chats/${room.chat.id}?panel=settings`;
    return h("div.empty", h("p", c("no_campaign")), h("a", { href }, c("choose")));
  }
  const world = new World(id, signal);
  const asked = proposals(world, signal);
  await Promise.all([world.read(), asked.read()]);
  const read = () => Promise.all([world.read(), asked.read()]).catch(complain);
  const soon = settled(read, 250, signal);
  const end = () => `${room.path.total} ${room.path.last()?.id}`;
  let known = end();
  on(room.path, "change", () => {
    // Loading other pages of messages changes nothing. A swipe, an edit or a deletion changes the
    // end of the path.
    const before = known;
    known = end();
    if (known !== before && !room.busy) soon();
  }, signal);
  on(room.events, "turn", soon, signal);
  on(document, "visibilitychange", () => document.hidden || soon(), signal);
  world.message = () => (kept.get("world.told") ? room.path.last()?.id : null);
  const onchange = ({ target }) => kept.set("world.told", target.checked);
  const told = h("label.row.told",
    h("input", { type: "checkbox", role: "switch", checked: kept.get("world.told"), onchange }),
    h("span.grow", c("told"), h("small.help", c("told_help"))));
  const compact = () => attempt(async () => {
    await commit();
    const { messages: count, waits } = await api.post(`${world.path}/compact`, { chat_id: room.chat.id });
    toast(c(waits && count ? "compact_waits" : "compacted", { count }));
  });
  const update = h("button", { onclick: compact }, c("compact"));
  return h("div", h("div.world", asked.element), sections(world, signal, true), update, told);
}
