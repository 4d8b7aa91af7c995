/** Token budgets of a prompt: sliders for trying values, and buttons that save them. */
import { api, attempt, control, h, set, t, toast } from "../core.js";

/** For each slider, the lowest step and the smallest number that can be typed. */
const BUDGETS = { total: [1024, 1024], history: [256, 0], retrieval: [256, 0], reply_reserve: [64, 1] };
const none = (of) => Object.fromEntries(Object.keys(of).map((name) => [name, null]));
const STEPS = 99;

/**
 * @returns {{element, tried, show, refuse}} `tried` are the moved values; `show(view)` sets the
 *   others; `refuse(why)` shows that the budgets are not possible.
 */
export function budgets(room, onchange) {
  const own = `/chats/${room.chat.id}/settings`;
  const tried = {};
  let kept = {};
  let spec;
  const known = attempt(async () => {
    const [{ items }, settings] = await Promise.all([api.get("/models"), api.get(own)]);
    kept = settings.budgets;
    return items;
  });
  let moved;
  let isRefused = false;

  const rows = Object.entries(BUDGETS).map(([name, [low, least]]) => {
    const label = t(`context.${name}`);
    const count = control({ name, label, kind: "number", min: least, step: 1, required: true });
    const state = h("small.soft");
    const range = h("input", { type: "range", label, oninput: slide });
    const most = () => (name === "reply_reserve" ? spec?.max_output_tokens : spec?.context_window) ?? 1e6;
    // Each step multiplies the value by the same factor.
    const factor = () => (most() / low) ** (1 / STEPS);
    const point = (value) => {
      range.value = value < low ? 0 : 1 + Math.log(value / low) / Math.log(factor());
      range.ariaValueText = t("common.tokens", { count: value });
    };
    const take = () => {
      const { input } = count;
      count.fault(input.validationMessage);
      if (input.validity.valid) {
        moved = count;
        tried[name] = count.read();
        onchange();
      }
      draw();
    };
    set(count.input, { oninput: () => (point(count.read()), take()) });
    function slide() {
      const at = range.valueAsNumber;
      const exact = low * factor() ** (at - 1);
      const unit = Math.max(1, 10 ** Math.floor(Math.log10(exact)) / 20);
      const value = at === 0 ? least : at > STEPS ? most() : Math.round(exact / unit) * unit;
      count.write(value);
      point(value);
      range.value = at;
      take();
    }
    const element = set(count.element, { class: "budget" });
    element.append(state, range);
    moved ??= count;
    return {
      element,
      draw() {
        state.textContent = name in tried ? t("context.tried") : name in kept ? t("context.own") : "";
      },
      show(values) {
        count.input.max = most();
        if (name in tried || count.input.matches(":invalid:focus")) return;
        count.fault();
        count.write(values[name]);
        point(values[name]);
      },
    };
  });

  /** Save budgets under the addresses of their settings, those of the chat last. */
  const put = async (wishes) => {
    for (const [address, budgets] of wishes) ({ budgets: kept } = await api.patch(address, { budgets }));
    draw();
    onchange();
  };
  const button = (name, wish) => {
    const onclick = () =>
      attempt(async () => {
        const these = { ...tried };
        const wishes = wish(these);
        const before = await Promise.all(wishes.map(async ([address]) => {
          const { budgets } = await api.get(address);
          return [address, { ...none(BUDGETS), ...budgets }];
        }));
        await put(wishes);
        for (const each in these) if (tried[each] === these[each]) delete tried[each];
        draw();
        toast(t("form.saved"), { action: t("common.undo"), onaction: () => attempt(() => put(before)) });
      });
    return h("button", { onclick }, t(`context.${name}`));
  };
  const keep = button("keep", (these) => [[own, these]]);
  // Settings of the chat would override these.
  const everywhere = button("keep_all", (these) => [["/me/settings", these], [own, none(these)]]);
  const back = button("reset", () => [[own, none(BUDGETS)]]);
  const element = h(
    "details.group",
    { open: true },
    h("summary", t("context.budgets")),
    h("p.help", t("context.budgets_help")),
    rows.map((row) => row.element),
    h("div.row", keep, everywhere, back),
  );
  const draw = () => {
    for (const row of rows) row.draw();
    back.disabled = !Object.keys({ ...tried, ...kept }).length;
    keep.disabled = !Object.keys(tried).length || isRefused || element.querySelector(":invalid") !== null;
    everywhere.disabled = keep.disabled;
  };
  draw();
  return {
    tried,
    element,
    async show(view) {
      spec = (await known)?.find((each) => each.id === view.model);
      if (isRefused) moved.fault();
      isRefused = false;
      for (const row of rows) row.show(view.budgets);
      draw();
    },
    refuse(why) {
      isRefused = true;
      moved.fault(why);
      draw();
    },
  };
}
