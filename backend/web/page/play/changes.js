/** What replies changed in the world of their campaign: a line under each, with the way back. */
import { api } from "../core/api.js";
import { attempt } from "../core/dialogs.js";
import { fill, h, style } from "../core/dom.js";
import { t } from "../core/words.js";
import { FACES, named } from "./stage.js";

const NEWEST = 200;

/**
 * The changes of a room's replies, kept as `room.changes`, by the ids of the messages.
 *
 * Those of the newest replies are read; what a turn changes is heard from it.
 */
export function follow(room) {
  const { path, signal } = room;
  room.changes = new Map();
  const put = (changes) => {
    for (const change of changes) {
      const known = room.changes.get(change.message_id) ?? [];
      room.changes.set(change.message_id, [...known.filter(({ id }) => id !== change.id), change]);
    }
    for (let at = 0; at < path.total; at++) {
      const message = path.at(at);
      if (changes.some(({ message_id: id }) => id === message?.id)) path.put({ ...message });
    }
  };
  room.events.addEventListener("played", ({ detail: { event, data } }) => {
    if (event === "state.changed") put(data.changes);
  }, { signal });
  const read = async () => {
    const { campaign_id: id } = room.chat;
    if (!id) return;
    const { items } = await api.get(`/campaigns/${id}/changes`, { query: { limit: NEWEST }, signal });
    put(items.filter((each) => each.actor === "tool" && each.message_id && each.counts).reverse());
  };
  attempt(read);
  // A choice is kept, whatever becomes of the rest of its turn.
  let hasChosen = false;
  room.events.addEventListener("played", ({ detail: { event } }) => (hasChosen ||= event === "turn.choice_made"), { signal });
  room.events.addEventListener("turn", () => {
    if (hasChosen) attempt(read);
    hasChosen = false;
  }, { signal });
}

/** The die that decided a reply, and what it fixed. */
export function decided(message, room) {
  const all = room.changes?.get(message.id) ?? [];
  const { tier, die, outcome } = all.map(({ set }) => set["attributes.play"]).findLast((play) => play?.tier) ?? {};
  if (!tier) return false;
  const said = die ? t("play.decided", { die, tier: named(tier) }) : named(tier);
  return h("p.row.die", {}, die && h("span.pips", { "aria-hidden": "true" }, FACES[die - 1]),
    h("span", {}, [said, outcome].filter(Boolean).join(" · ")));
}

/** The line under a reply that changed something; its changes unfold below it. */
export function changed(message, room) {
  const changes = room.changes?.get(message.id);
  if (!changes?.length) return false;
  const list = h("ol.ledger");
  const unfold = async () => {
    const parts = [import("../campaign/ledger.js"), import("../campaign/world.js"), style("campaign")];
    const [{ line }, { World }] = await Promise.all(parts);
    const world = new World(room.chat.campaign_id, room.signal);
    await world.read();
    fill(list, changes.map((each) => line(each, world)));
  };
  const ontoggle = ({ target }) => target.open && !list.children.length && attempt(unfold);
  return h("details.changes", { ontoggle },
    h("summary", {}, t("play.changed", { count: changes.length })), list);
}
