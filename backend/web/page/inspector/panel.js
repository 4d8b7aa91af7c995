/** The context inspector: the items of a prompt, the reasons for them, and the items left out. */
import { act, api, combine, control, explain, fill, h, money, number, on, set, settled, t } from "../core.js";
import { copy } from "../chat/actions.js";
import { isGroup } from "../chat/cast.js";
import { costs } from "../chat/cost.js";
import { windowLink, windowOf } from "../models/picker.js";
import { budgets } from "./budgets.js";
import { names } from "../models/sampling.js";
import { layers } from "./layers.js";
import { grouped, GROUPS, piece, unfolding } from "./pieces.js";
import { upper, why } from "./why.js";

const SIGNS = { added: "+", removed: "−", changed: "≠" };
const HEAVIEST = 6;

/** Sentences about an unusual form of the prompt, and about the way in which tools were called. */
const form = ({ shape, unsent_settings: unsent, tool_support: support }) => [
  shape !== "lenient" && t(`context.shapes.${shape}`),
  support && t(`context.tool_supports.${support}`),
  unsent.length > 0 && t("context.unsent", { names: names(unsent) }),
].filter(Boolean);

/** The model's window and its source, with a link to the setting if the number is assumed. */
function size({ window: recorded, model }) {
  if (!recorded) return null; // an older reply
  const { tokens: context_window, source: figures_from } = recorded;
  const window = windowOf({ context_window, figures_from }, { always: true });
  return h("li", t("context.model_window", { window }), figures_from === "default" && [" ", windowLink(model)]);
}

/** A select of the member for whom the next prompt is shown: who speaks next, or the narrator. */
function viewer(room, chosen, onchange) {
  const options = [[null, t("context.view_next")], ...room.members.map(({ id, name }) => [id, name]), ["gm", t("context.view_all")]];
  const made = control({ kind: "select", name: "viewpoint", label: t("context.view"), options });
  made.write(options.some(([id]) => id === chosen) ? chosen : null);
  made.input.onchange = onchange;
  return made;
}

/** The panel for a reply (`options.message`), or for the next turn. */
export default async function panel(room, { options: { message, viewpoint }, signal }) {
  const chat = `/chats/${room.chat.id}`;
  const next = () => h("a", { href: `#${chat}?panel=context` }, t("context.see_next"));
  const campaign = room.chat.campaign_id && `#/campaigns/${room.chat.campaign_id}`;
  const known = { chat: `#${chat}`, campaign, containers: {}, opened: new Set() };
  const which = h("small.soft", !message && t("context.next"));
  const seen = !message && isGroup(room) ? viewer(room, viewpoint, () => soon()) : null;
  const speaks = h("p.soft.speaks", { hidden: true });
  const sum = h("p.sum");
  const bar = h("div.window", { role: "group", label: t("context.window") });
  const reuse = h("small.soft");
  const price = h("small.soft");
  const trouble = h("div", { role: "alert" });
  const groups = Object.keys(GROUPS).map((name) => group(name, bar, known));
  const sliders = message ? null : budgets(room, () => soon());
  const world = layers(message, signal);
  const change = fold("since");
  const left = fold("left_out");
  const close = fold("near_misses");
  const exact = fold("exact");
  const notes = h("ul.notes.soft");
  const element = h(
    "div.inspector",
    { "aria-busy": "true" },
    h("div.top", which, seen?.element, speaks, sum, bar, reuse, " ", price),
    trouble,
    groups.map((each) => each.element),
    world.element,
    notes,
    [left.element, close.element, sliders?.element, change.element, exact.element],
  );

  function show(view) {
    const { totals, difference, usage } = view;
    const { shared_prefix: count, shared_tokens: shared = 0 } = difference ?? {};
    known.containers = view.containers;
    const { speaker, viewpoint: from } = view;
    const said = [
      speaker && t("context.speaker", { name: speaker.name, why: why(speaker.reasons ?? []) }),
      from && from.id !== "public" && t("context.limited", { name: from.name }),
    ];
    speaks.textContent = combine(said, " ");
    speaks.hidden = !speaks.textContent;
    if (message) fill(which, t("context.sent", { model: view.model }), " ", next());
    fill(sum, h("strong", number(totals.prompt)), ` ${t("context.of", { total: totals.total })}`);
    const found = grouped(view);
    let same = usage?.cached_tokens || shared;
    for (const each of groups) {
      const { tokens } = found[each.name];
      each.show(found[each.name], view, each.isPlain ? 0 : Math.min(1, same / tokens || 0));
      same = Math.max(0, same - tokens);
    }
    fill(
      reuse,
      count > 0 && `${t("context.shared", { count, tokens: shared })} `,
      usage && t("context.reported", { tokens: usage.prompt_tokens, cached: usage.cached_tokens }),
    );
    world.show(view);
    left.show(view.left_out.map((item) => piece(item, known)));
    close.show(view.near_misses.map((item) => piece(item, known)));
    change.element.hidden = !difference;
    if (difference) showChanges(difference);
    if (exact.element.open && view.prompt) showPrompt(view.prompt);
    fill(notes, size(view), [...view.notes, ...form(view)].map((note) => h("li", upper(note))));
    fill(trouble);
    element.classList.remove("over");
    sliders?.show(view);
    // The panel works without prices, so errors are ignored.
    showPrice(view.model, totals.prompt).catch(() => {});
  }

  /** Show the cost of all attempts at a reply, or the maximum cost of the next prompt. */
  async function showPrice(model, tokens) {
    if (message) {
      const used = await api.get(`${chat}/usage`, { query: { reply_id: message }, signal });
      const { cached_tokens: cached, thinking_tokens: thinking, unreported: count } = used;
      const uncounted = count ? `${t("chat.cost_unreported", { count })}.` : "";
      price.textContent = used.turns ? t("context.cost", { cost: costs(used), cached, thinking }) : uncounted;
    } else {
      models ??= api.all("/models", { signal });
      const { price: rate } = (await models).find((each) => each.id === model) ?? {};
      price.textContent = rate ? t("context.estimate", { cost: money((tokens * rate.input) / 1e6) }) : "";
    }
  }

  function showChanges(difference) {
    const { history_first: [was, is], history_last: [before, now], previous_message_id: id } = difference;
    const lines = Object.entries(SIGNS).flatMap(([name, sign]) =>
      difference[name].filter(({ kind }) => kind !== "user_line").map((item) => {
        const line = piece(item, known);
        line.prepend(h("b.sign", { role: "img", label: t(`context.${name}`), class: name }, sign));
        return line;
      }),
    );
    const grown = { from: (before ?? -1) + 2, to: now + 1 };
    change.show(lines, [
      !lines.length && h("p", t("context.same")),
      is !== was && is != null && was != null && h("p", t("context.moved", { was: was + 1, is: is + 1 })),
      now != null && grown.to >= grown.from && h("p", t("context.grown", grown)),
      h("a", { href: `#${chat}?panel=context&message=${id}` }, t("context.previous")),
    ]);
  }

  function showPrompt(prompt) {
    const json = JSON.stringify(prompt.map(({ role, text }) => ({ role, content: text })), null, 2);
    const lines = prompt.map(({ role, text }, at) => {
      const head = h("summary.clip", h("b", `${number(at + 1)} ${role}`), ` ${text.slice(0, 120)}`);
      return h("li", unfolding(at, known.opened, head, text));
    });
    exact.show(lines, act("copy", t("context.copy"), () => copy(json)));
  }
  on(exact.element, "toggle", () => {
    if (!exact.element.open) return;
    exact.show([], t("common.loading"));
    refresh();
  });

  function fail(error) {
    if (error.name === "AbortError") return;
    element.classList.add("over");
    const { slug, body } = error;
    if (slug === "context-overflow") {
      reuse.textContent = t("context.overflow", body);
      const worst = body.sections.sort((a, b) => b.tokens - a.tokens).slice(0, HEAVIEST);
      fill(trouble, h("ul", worst.map((each) => piece(each, known))));
    } else if (body?.detail?.startsWith("budgets")) {
      reuse.textContent = t("context.no_room");
      sliders.refuse(reuse.textContent);
    } else if (slug?.startsWith("context-not-")) {
      const text = t(`context.${slug.replaceAll("-", "_")}`);
      fill(element, h("div.empty", h("p", { role: "alert" }, text), next()));
    } else {
      const retry = h("button", { onclick: refresh }, t("common.retry"));
      fill(trouble, h("div.empty", h("p", explain(error)), retry));
    }
  }

  const ask = () => {
    if (message) return api.get(`/messages/${message}/context`, { query: { diff: "previous" }, signal });
    const from = seen?.read() ?? room.composer.speaker;
    const whose = from === "gm" ? { viewpoint: from } : from ? { speaker: from, viewpoint: from } : {};
    const { text, files } = room.composer;
    const wish = { text, files, budgets: sliders.tried, diff: "previous", ...whose };
    return api.post(`${chat}/context`, { ...wish, prompt: exact.element.open }, { signal });
  };
  // Requests run one after the other, and only the latest input is sent next.
  let asking = false;
  let again = false;
  let models;
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
  const soon = settled(refresh, 120, signal);
  if (!message) {
    on(document, "input", soon, signal);
    on(room.events, "turn model speaker", soon, signal);
    on(room.path, "change", () => room.busy || soon(), signal);
  }
  refresh();
  return element;
}

/** A group: its segment of the bar, and its items. */
function group(name, bar, known) {
  const label = t(`context.groups.${name}`);
  const isPlain = name === "free" || name === "reserve";
  const [tokens, share] = [h("span.figure"), h("span.figure.share")];
  const list = h("ul");
  const parts = [h("i.swatch"), h("span.grow", label), tokens, share];
  const head = h(isPlain ? "div.head" : "summary.head", parts);
  const element = h(isPlain ? "div.part" : "details.part", { "data-group": name }, head, !isPlain && list);
  const onclick = () => {
    element.open = true;
    head.scrollIntoView({ block: "nearest" });
    head.focus();
  };
  const segment = h("button.segment", { "data-group": name, hidden: true, onclick });
  bar.append(segment);
  let shown;
  return {
    name,
    element,
    isPlain,
    show({ tokens: count, pieces }, { totals, containers }, same) {
      const part = Math.round((count / totals.total) * 100);
      const percent = part || !count ? `${part} %` : "<1 %";
      const title = `${label}: ${t("common.tokens", { count })}, ${percent}`;
      set(segment, { vars: { n: count, same }, hidden: !count, title, label: title });
      element.hidden = !count && !isPlain;
      tokens.textContent = number(count);
      share.textContent = percent;
      const now = JSON.stringify([pieces, containers]);
      if (now !== shown) fill(list, pieces.map((each) => piece(each, known)));
      shown = now;
    },
  };
}

/** A section with a list, hidden while the list is empty. */
function fold(name) {
  const count = h("span.figure");
  const list = h(`ul.${name}`);
  const more = h("div.more");
  const element = h("details.group", h("summary", t(`context.${name}`), " ", count), more, list);
  return {
    element,
    show(lines, also) {
      element.hidden = !lines.length && !also;
      count.textContent = lines.length ? number(lines.length) : "";
      fill(list, lines);
      fill(more, also);
    },
  };
}
