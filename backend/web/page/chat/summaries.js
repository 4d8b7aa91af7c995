/** The summaries of a chat. In a group they are pieces that begin where presence changed. */
import { act, api, autoform, fill, h, list, pend, sendLater, t } from "../core.js";
import { isGroup, m } from "./cast.js";
import { word } from "./fields.js";

/**
 * Show the current summaries in a box, the oldest first: all, or those that a viewpoint knows.
 * Returns their number.
 */
export async function summaries(room, box, { viewpoint, signal }) {
  const path = `/chats/${room.chat.id}`;
  const draw = () => summaries(room, box, { viewpoint, signal });
  // Without a group, the older ones are earlier versions.
  const limit = isGroup(room) ? 100 : 1;
  const { items } = await api.get(`${path}/summaries`, { query: { viewpoint, limit }, signal });
  const names = ({ audience }) => Array.isArray(audience) &&
    h("small.soft", m("known", { names: list(room.members.filter(({ id }) => audience.includes(id)).map(({ name }) => name)) }));
  const piece = (it) => {
    const own = `${path}/summaries/${it.id}`;
    const label = word("summary_part", { from: it.from_position + 1, n: it.through_position + 1 });
    const groups = [{ fields: [{ name: "text", kind: "area", count: true, label }] }];
    const save = async (what) => {
      it = await api.put(own, what, { ifMatch: it.revision });
    };
    const drop = () => sendLater(t("common.deleted", { name: label }), own, { then: () => signal.aborted || draw() });
    return pend(h("div.stack",
      autoform({ signal, value: it, groups, save }).element, names(it),
      h("div", act("delete", word("drop"), drop))), own);
  };
  fill(box, items.toReversed().map(piece));
  return items.length;
}
