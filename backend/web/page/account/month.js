/** Tokens and cost of this month, with the account's own limit. */
import { costs } from "../chat/cost.js";
import { api, attempt, autoform, fill, h, money, pageSettings } from "../core.js";
import { a } from "./forms.js";
import { part } from "./parts.js";

const isUsed = ({ turns, runs, unreported }) => turns + runs + unreported > 0;

export function month(signal) {
  const out = h("div.stack");
  let usage;
  const draw = () => {
    const limit = pageSettings.get().monthly_limit;
    const spent = usage.cost?.amount ?? 0;
    const figures = limit && a("of", { used: money(spent), limit: money(limit) });
    fill(out,
      h("p", isUsed(usage) ? costs(usage) : a("month_nothing")),
      limit > 0 && h("div.progress",
        h("progress", { max: limit, value: Math.min(spent, limit), label: a("monthly_limit"), "aria-valuetext": figures }),
        h("span.figure", figures)),
      limit > 0 && spent >= limit && h("p.trouble", a("month_over")),
      h("ul.list", { label: a("month_models") }, usage.by_model.map((each) =>
        h("li", h("div.grow.clip", each.model), h("span.help", costs(each))))));
  };
  const save = async (changes) => {
    await pageSettings.save(changes);
    draw();
  };
  const field = { name: "monthly_limit", label: a("monthly_limit"), help: a("monthly_limit_help"), kind: "number", min: 0, max: 1e6 };
  attempt(async () => {
    usage = await api.get("/usage/month", { signal });
    draw();
  });
  return part("month", out, autoform({ groups: [{ fields: [field] }], value: pageSettings.get(), signal, save }).element);
}
