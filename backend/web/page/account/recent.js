/** Recent activity of the account: sign-ins, new keys, exports. */
import { api, attempt, combine, h, timed } from "../core.js";
import { a } from "./forms.js";
import { button, part } from "./parts.js";

const row = ({ kind, at, client, address, detail, count }) =>
  h("li",
    h("div.grow",
      h("div", combine([a(`events.${kind}`), detail], ": "), count > 1 && ` (${count} ×)`),
      h("small.help", combine([client, address], ", "))),
    timed(at, "help"));

export function recent() {
  const list = h("ul.list");
  let after;
  const read = async () => {
    const page = await api.get("/me/activity", { query: { limit: 10, after } });
    list.append(...page.items.map(row));
    after = page.next;
    more.hidden = !after;
  };
  const more = button("older", read, { hidden: true });
  attempt(read);
  return part("recent", list, h("div", more));
}
