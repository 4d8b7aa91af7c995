/** How a window is shared out: sliders that try it, and ways to keep what was tried. */
import { api } from "../core/api.js";
import { attempt, toast } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { t } from "../core/words.js";

/** The first stop of each slider, and the least that may be typed. */
const BUDGETS = { total: [1024, 1024], history: [256, 0], retrieval: [256, 0], reply_reserve: [64, 1] };

/** @returns {{element, tried, show}} `tried` is what was moved; `show(view)` sets what was not. */
export function budgets(room, onchange) {
  const own = `/chats/${room.chat.id}/settings`;
  const models = api.get("/models").catch(() => ({ items: [] }));
  const tried = {};
  let spec;

  const rows = Object.entries(BUDGETS).map(([name, [low, least]]) => {
    const most = () => (name === "reply_reserve" ? spec?.max_output_tokens : spec?.context_window) ?? 1e6;
    const step = () => Math.log(most() / low) / 99;
    const say = (value) => range.setAttribute("aria-valuetext", t("common.tokens", { count: value }));
    const point = (value) => {
      range.value = value < low ? 0 : 1 + Math.log(value / low) / step();
      say(value);
    };
    const take = (value) => {
      tried[name] = value;
      draw();
      onchange();
    };
    const slide = () => {
      const at = range.valueAsNumber;
      const exact = low * Math.exp((at - 1) * step());
      const unit = Math.max(1, 10 ** Math.floor(Math.log10(exact)) / 20);
      const value = at === 0 ? least : at === 100 ? most() : Math.round(exact / unit) * unit;
      count.value = value;
      say(value);
      take(value);
    };
    const type = () => {
      if (!count.value || !count.checkValidity()) return;
      point(count.valueAsNumber);
      take(count.valueAsNumber);
    };
    const label = t(`context.${name}`);
    const range = h("input", { type: "range", "aria-label": label, oninput: slide });
    const count = h("input", { id: `budget-${name}`, type: "number", min: least, max: 1e7, oninput: type });
    return {
      element: h("div.budget", {}, h("label", { for: count.id }, label), count, range),
      show(budgets) {
        if (name in tried) return;
        count.value = budgets[name];
        point(budgets[name]);
      },
    };
  });

  const button = (name, act) => {
    const onclick = () =>
      attempt(async () => {
        const undo = await act();
        for (const each of Object.keys(tried)) delete tried[each];
        draw();
        onchange();
        toast(t("form.saved"), undo ? { action: t("common.undo"), onaction: () => attempt(undo) } : {});
      });
    return h("button", { onclick }, t(`context.${name}`));
  };
  const keep = button("keep", () => api.patch(own, { budgets: tried }).then(() => null));
  const everywhere = button("keep_all", async () => {
    await api.patch("/me/settings", { budgets: tried });
    // What the chat has of its own would stand before it.
    const none = Object.fromEntries(Object.keys(tried).map((name) => [name, null]));
    await api.patch(own, { budgets: none });
  });
  const back = button("reset", async () => {
    const before = await api.get(own);
    await api.patch(own, { budgets: null });
    return () => api.patch(own, { budgets: before.budgets }).then(onchange);
  });
  const draw = () => (keep.disabled = everywhere.disabled = !Object.keys(tried).length);
  draw();
  return {
    tried,
    element: h(
      "details.group",
      { open: true },
      h("summary", {}, t("context.budgets")),
      h("p.help", {}, t("context.budgets_help")),
      rows.map((row) => row.element),
      h("div.row", {}, keep, everywhere, back),
    ),
    async show(view) {
      spec = (await models).items.find((each) => each.id === view.model);
      for (const row of rows) row.show(view.budgets);
    },
  };
}
