/** Changes of the campaign's world below the replies that made them, with undo. */
import { api, attempt, combine, fill, h, on, style, t } from "../core.js";
import { FACES, named } from "./stage.js";

const NEWEST = 200;

/**
 * Load the changes of a room's replies into `room.changes`, by message id.
 *
 * The changes of recent replies are read from the API, those of a turn from its events.
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
  on(room.events, "played", ({ detail: { event, data } }) => {
    if (event === "state.changed") put(data.changes);
  }, signal);
  const read = async () => {
    const { campaign_id: id } = room.chat;
    if (!id) return;
    const { items } = await api.get(`/campaigns/${id}/changes`, { query: { limit: NEWEST }, signal });
    put(items.filter((each) => each.actor === "tool" && each.message_id && each.counts).reverse());
  };
  attempt(read);
  // The choice is kept even if the rest of the turn fails.
  let hasChosen = false;
  on(room.events, "played", ({ detail: { event } }) => (hasChosen ||= event === "turn.choice_made"), signal);
  on(room.events, "turn", () => {
    if (hasChosen) attempt(read);
    hasChosen = false;
  }, signal);
}

/** The die roll that decided a reply, and its result. */
export function decided(message, room) {
  const all = room.changes?.get(message.id) ?? [];
  const { tier, die, outcome } = all.map(({ set }) => set["attributes.play"]).findLast((play) => play?.tier) ?? {};
  if (!tier) return false;
  const said = die ? t("play.decided", { die, tier: named(tier) }) : named(tier);
  return h("p.row.die", die && h("span.pips", { "aria-hidden": "true" }, FACES[die - 1]),
    h("span", combine([said, outcome])));
}

/** The line below a reply with changes. It unfolds to the list of changes. */
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
    h("summary", t("play.changed", { count: changes.length })), list);
}
