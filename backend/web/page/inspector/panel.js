/** The context inspector: what the model sees, why, and what is left out. */
import { api } from "../core/api.js";
import { attempt, explain, toast } from "../core/dialogs.js";
import { fill, h, icon, settled } from "../core/dom.js";
import { number, t } from "../core/words.js";
import { budgets } from "./budgets.js";
import { grouped, GROUPS, piece, upper } from "./pieces.js";

const SIGNS = { added: "+", removed: "−", changed: "≠" };

/** The panel for one reply (`options.message`), or for the turn that would come now. */
export default async function panel(room, { options: { message }, signal }) {
  const chat = `/chats/${room.chat.id}`;
  const next = () => h("a", { href: `#${chat}?panel=context` }, t("context.see_next"));
  const opened = new Set();
  const which = h("small.soft", {}, message ? "" : t("context.next"));
  const sum = h("p.sum");
  const bar = h("div.window", { role: "group", "aria-label": t("context.window") });
  const reuse = h("small.soft");
  const trouble = h("div", { role: "alert" });
  const rows = Object.keys(GROUPS).map((name) => group(name, bar, room, opened));
  const sliders = message ? null : budgets(room, () => soon());
  const change = fold("since");
  const left = fold("left_out");
  const exact = fold("exact");
  const notes = h("ul.notes.soft");
  const folds = [change, left, exact].map((each) => each.element);
  const parts = [rows.map((row) => row.element), notes, sliders?.element, folds];
  const top = h("div.top", {}, which, sum, bar, reuse);
  const element = h("div.inspector", { "aria-busy": "true" }, top, trouble, parts);

  let prompt = null;
  function show(view) {
    const { totals, difference, usage } = view;
    if (message) fill(which, t("context.sent", { model: view.model }), " ", next());
    fill(sum, h("strong", {}, number(totals.prompt)), ` ${t("context.of", { total: totals.total })}`);
    const groups = grouped(view);
    let same = usage?.cached_tokens || difference?.shared_tokens || 0;
    for (const row of rows) {
      const { tokens } = groups[row.name];
      row.show(groups[row.name], view, row.isPlain ? 0 : Math.min(1, same / tokens || 0));
      same = Math.max(0, same - tokens);
    }
    const shared = { count: difference?.shared_prefix, tokens: difference?.shared_tokens };
    fill(
      reuse,
      shared.count > 0 && `${t("context.shared", shared)} `,
      usage && t("context.reported", { tokens: usage.prompt_tokens, cached: usage.cached_tokens }),
    );
    left.show(view.left_out.map((item) => piece(item, room)));
    change.element.hidden = !difference;
    if (difference) change.show(...changes(view));
    prompt = view.prompt;
    if (exact.element.open) showPrompt();
    fill(notes, view.notes.map((note) => h("li", {}, upper(note))));
    fill(trouble);
    element.classList.remove("over");
    sliders?.show(view);
  }

  function changes({ difference, containers }) {
    const { history_first: [was, is], history_last: [before, now], previous_message_id: id } = difference;
    const lines = Object.entries(SIGNS).flatMap(([name, sign]) =>
      difference[name].filter(({ kind }) => kind !== "user_line").map((item) => {
        const line = piece(item, room, containers, opened);
        line.prepend(h("b.sign", { role: "img", "aria-label": t(`context.${name}`), class: name }, sign));
        return line;
      }),
    );
    return [lines, [
      !lines.length && h("p", {}, t("context.same")),
      is !== was && is != null && was != null && h("p", {}, t("context.moved", { was: was + 1, is: is + 1 })),
      now !== before && now != null && h("p", {}, t("context.grown", { from: (before ?? -1) + 2, to: now + 1 })),
      h("a", { href: `#${chat}?panel=context&message=${id}` }, t("context.previous")),
    ]];
  }

  let lines = [];
  function showPrompt() {
    if (!prompt) return exact.show([h("li", {}, t("common.loading"))]);
    const json = JSON.stringify(prompt.map(({ role, text }) => ({ role, content: text })), null, 2);
    const copy = () => attempt(() => navigator.clipboard.writeText(json).then(() => toast(t("common.copied"))));
    // What stays the same stays open.
    lines = prompt.map(({ role, text }, at) => {
      if (lines[at]?.text === text && lines[at].role === role) return lines[at];
      const whole = h("div.text");
      const ontoggle = ({ target }) => (whole.textContent = target.open ? text : "");
      const head = h("summary.clip", {}, h("b", {}, `${number(at + 1)} ${role}`), ` ${text.slice(0, 120)}`);
      return { role, text, element: h("li", {}, h("details", { ontoggle }, head, whole)) };
    });
    exact.show(lines.map((line) => line.element), h("button", { onclick: copy }, icon("copy"), t("context.copy")));
  }
  exact.element.addEventListener("toggle", () => {
    if (!exact.element.open) return;
    showPrompt();
    if (!prompt) refresh();
  });

  function fail(error) {
    if (error.name === "AbortError") return;
    if (!error.body) console.error(error);
    element.classList.add("over");
    const { slug, body } = error;
    if (slug === "context-overflow") {
      reuse.textContent = t("context.overflow", body);
      const worst = body.sections.sort((a, b) => b.tokens - a.tokens).slice(0, 6);
      return fill(trouble, h("ul", {}, worst.map((each) => piece({ ...each, reason: "" }, room))));
    }
    const own = { "context-not-found": "no_prompt", "context-not-rebuilt": "changed_since" }[slug];
    if (own) return fill(element, h("div.empty", {}, h("p", { role: "alert" }, t(`context.${own}`)), next()));
    const text = body ? explain(error) : t("errors.page");
    fill(trouble, h("div.empty", {}, h("p", {}, text), h("button", { onclick: refresh }, t("common.retry"))));
  }

  const ask = () => {
    if (message) return api.get(`/messages/${message}/context`, { query: { diff: "previous" }, signal });
    const wish = { text: room.composer.text, budgets: sliders.tried, prompt: exact.element.open, diff: "previous" };
    return api.post(`${chat}/context`, wish, { signal });
  };
  // One after the other, the newest wish next: nothing stale is drawn, and no request is for nothing.
  let asking = false;
  let again = false;
  async function refresh() {
    again = true;
    if (asking) return;
    asking = true;
    while (again && !signal.aborted) {
      again = false;
      await ask().then(show).catch(fail);
      element.removeAttribute("aria-busy");
    }
    asking = false;
  }
  const soon = settled(refresh, 120);
  signal.addEventListener("abort", soon.drop);
  if (!message) {
    let text = room.composer.text;
    const typed = () => text !== (text = room.composer.text) && soon();
    document.addEventListener("input", typed, { signal });
    room.events.addEventListener("turn", soon, { signal });
    room.path.addEventListener("change", () => room.busy || soon(), { signal });
  }
  const light = ({ target }) => {
    const { group } = target.closest("[data-group]")?.dataset ?? {};
    for (const each of element.querySelectorAll("[data-group]")) {
      each.classList.toggle("lit", each.dataset.group === group);
    }
  };
  element.addEventListener("pointerover", light);
  element.addEventListener("focusin", light);
  refresh();
  return element;
}

/** A group: its part of the bar, and what is in it. */
function group(name, bar, room, opened) {
  const label = t(`context.groups.${name}`);
  const isPlain = name === "free" || name === "reserve";
  const [tokens, share] = [h("span.figure"), h("span.figure.share")];
  const list = h("ul");
  const head = h(isPlain ? "div.head" : "summary.head", {}, h("i.swatch"), h("span.grow", {}, label), tokens, share);
  const element = h(isPlain ? "div.part" : "details.part", { "data-group": name }, head, !isPlain && list);
  const onclick = () => {
    element.open = true;
    head.scrollIntoView({ block: "nearest", behavior: "smooth" });
    head.focus({ preventScroll: true });
  };
  const segment = h("button.segment", { "data-group": name, onclick });
  bar.append(segment);
  let known;
  return {
    name,
    element,
    isPlain,
    show({ tokens: count, pieces }, { totals, containers }, same) {
      const part = Math.round((count / totals.total) * 100);
      const percent = part || !count ? `${part} %` : "<1 %";
      segment.style.setProperty("--n", count);
      segment.style.setProperty("--same", same);
      segment.hidden = !count;
      segment.title = `${label}: ${t("common.tokens", { count })}, ${percent}`;
      segment.setAttribute("aria-label", segment.title);
      element.hidden = !count && !isPlain;
      tokens.textContent = number(count);
      share.textContent = percent;
      const now = JSON.stringify([pieces, containers]);
      if (now !== known) fill(list, pieces.map((each) => piece(each, room, containers, opened)));
      known = now;
    },
  };
}

/** A fold with a list in it, hidden while there is nothing. */
function fold(name) {
  const count = h("span.figure");
  const list = h(name === "exact" ? "ol.exact" : "ul");
  const more = h("div.more");
  return {
    element: h("details.group", {}, h("summary", {}, t(`context.${name}`), " ", count), more, list),
    show(lines, also) {
      this.element.hidden = !lines.length && !also;
      count.textContent = number(lines.length);
      fill(list, lines);
      fill(more, also);
    },
  };
}
