/** A list of things that can be ended: sessions, keys, invitations. */
import { api, attempt, fill, h, sure } from "../core.js";
import { a } from "./forms.js";
import { button, part } from "./parts.js";

/**
 * A list of the items at a path. `row` returns the name, the description, and the label of "End".
 */
export function listing(name, path, row, make, act) {
  const list = h("ul.list");
  const read = async () => fill(list, (await api.all(path)).filter((item) => !item.used_at).map(line));
  const line = (item) => {
    const [label, about, other] = row(item);
    const named = a("end_named", { name: label });
    const end = async () => {
      if (!(await sure(named, a("end_help"), a("end")))) return;
      await api.delete(`${path}/${item.id}`);
      await read();
    };
    return h("li", {},
      h("div.grow", {}, h("div.clip", {}, label), h("small.help", {}, about)),
      other ?? button("end", end, { "aria-label": named }));
  };
  attempt(read);
  return part(name, list, make && h("div", {}, button(make, async () => (await act(), read()))));
}
