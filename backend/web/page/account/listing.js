/** A list of things that can be ended: sessions, keys, invitations. */
import { api, attempt, fill, h, undoable } from "../core.js";
import { a } from "./forms.js";
import { button, part } from "./parts.js";

/**
 * A list of the items at a path. `row` returns the name, the description, and the label of "End".
 */
export function listing(name, path, row, make, act) {
  const list = h("ul.list");
  const away = new Set();
  const read = async () => {
    const items = await api.all(path);
    fill(list, items.filter(({ id, used_at: used }) => !used && !away.has(id)).map(line));
  };
  const line = (item) => {
    const { id } = item;
    const [label, about, other] = row(item);
    const named = a("end_named", { name: label });
    const end = () => undoable(a("ended", { name: label }), {
      hide() {
        away.add(id);
        element.hidden = true;
      },
      act: (options) => api.delete(`${path}/${id}`, undefined, options),
      show() {
        away.delete(id);
        attempt(read);
      },
    });
    const element = h("li",
      h("div.grow", h("div.clip", label), h("small.help", about)),
      other ?? button("end", end, { "aria-label": named }));
    return element;
  };
  attempt(read);
  return part(name, list, make && h("div", button(make, async () => (await act(), read()))));
}
