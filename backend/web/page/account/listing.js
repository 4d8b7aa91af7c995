/** A list of things that can be ended: sessions, keys, invitations. */
import { api, attempt, fill, h, pend, sendLater, t, UNDO_SECONDS } from "../core.js";
import { a } from "./forms.js";
import { button, part } from "./parts.js";

/**
 * A list of the items at a path. `row` returns the name, the description, and the label of "End".
 */
export function listing(name, path, row, make, act) {
  const list = h("ul.list");
  const read = async () => fill(list, (await api.all(path)).filter(({ used_at: used }) => !used).map(line));
  const line = (item) => {
    const own = `${path}/${item.id}`;
    const [name, about, other] = row(item);
    const end = () => sendLater(a("ended", { name, seconds: UNDO_SECONDS }), own, { now: t("common.now") });
    return pend(h("li",
      h("div.grow", h("div.clip", name), h("small.help", about)),
      other ?? button("end", end, { label: a("end_named", { name }) })), own);
  };
  attempt(read);
  return part(name, list, make && h("div", button(make, async () => (await act(), read()))));
}
