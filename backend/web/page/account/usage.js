/** Usage of an account's quotas. */
import { api, attempt, dateTime, fill, h, number, size } from "../core.js";
import { a } from "./forms.js";
import { part } from "./parts.js";

const row = ({ quota, used, limit, unit, frees_at: at }) => {
  const name = a(`quotas.${quota}`);
  const shown = unit === "bytes" ? size : number;
  const figures = limit ? a("of", { used: shown(used), limit: shown(limit) }) : a("no_limit", { used: shown(used) });
  const bar = () =>
    h("div.progress", h("progress", { max: limit, value: used, label: name, "aria-valuetext": figures }));
  return h("li",
    h("div.grow",
      h("div.row", h("div.grow", name), h("span.help", figures)),
      limit && bar(),
      at && h("small.help", a("frees", { when: dateTime(at) }))));
};

/** The quotas at a path, with a bar for each one that has a limit. */
export function bars(path) {
  const list = h("ul.list");
  attempt(async () => fill(list, (await api.get(path)).items.map(row)));
  return list;
}

export const usage = () => part("usage", bars("/me/usage"));
