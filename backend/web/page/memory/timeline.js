/** A chronicle's events along the story's time. */
import { api } from "../core/api.js";
import { attempt, toast, undoable } from "../core/dialogs.js";
import { fill, h, icon, set, settled } from "../core/dom.js";
import { date, t } from "../core/words.js";
import { EVENT, KIND_OPTIONS, asking, m, titles } from "./parts.js";

const inOrder = (a, b) => Date.parse(a.happened_at) - Date.parse(b.happened_at);

/**
 * @returns {{element, add, choosing, put}} `add()` asks for a new event, `choosing()` lets several be
 *   chosen, `put(event)` shows one where it belongs.
 */
export async function timeline(it, query, signal) {
  const path = `/chronicles/${it.id}/events`;
  const names = await titles();
  const list = h("ol.timeline", { "aria-label": m("timeline") });
  const chosen = new Map();
  let next;
  let reading;

  const change = (event, changes) =>
    attempt(async () => put(await api.patch(`${path}/${event.id}`, changes, { ifMatch: event.revision })));
  const ask = async (key, label, value, send) => {
    const event = await asking(`event.${key}`, label, EVENT, value, send);
    if (event) put(event);
    return event;
  };
  const add = () => ask(it.id, m("add"), {}, (values) => api.post(path, values));

  const draw = (event) => {
    const { id, revision: ifMatch, pinned, significance: weight, source_message_ids: from } = event;
    const day = event.day == null ? "" : m("story_day", event);
    const at = `${path}/${id}`;
    const send = (values) => api.patch(at, values, { ifMatch });
    const edit = () => ask(`${id}.${ifMatch}`, t("common.edit"), event, send);
    const remove = () => undoable(m("deleted"), {
      hide: () => (node.hidden = true),
      act: (options) => api.delete(at, undefined, options),
      show: () => (node.hidden = false),
    });
    const act = (label, sign, onclick, more) =>
      h("button.quiet", { "aria-label": label, title: label, onclick, ...more }, icon(sign));
    const by = (name) => (value) =>
      h("button.tag", { class: name, onclick: () => narrow(name, value) }, value);
    const checked = chosen.has(id);
    const choose = ({ target }) => {
      if (target.checked) chosen.set(id, event);
      else chosen.delete(id);
      count();
    };
    const node = h("li", { class: event.is_current ? "" : "aside", vars: { weight } },
      h("div.when", {},
        day || event.time ? h("b", {}, day || event.time) : h("span", {}, date(event.happened_at)),
        day && event.time),
      h("article", {},
        h("header.row.soft", {},
          h("input.pick", { type: "checkbox", "aria-label": event.summary, checked, onchange: choose }),
          h("b", {}, m(`kinds.${event.kind}`)),
          h("span.grow", {},
            m(`source.${event.source}`), event.edited && m("edited"),
            h("span.unseen", {}, m("weighs", { weight }))),
          act(m("pinned"), "pin", () => change(event, { pinned: !pinned }), { "aria-pressed": `${pinned}` }),
          act(t("common.edit"), "edit", edit),
          act(t("common.delete"), "delete", remove)),
        h(event.superseded_by && !event.is_current ? "s.prose" : "p.prose", {}, event.summary),
        !event.is_current && reason(event),
        h("div.row", {},
          event.where && by("q")(event.where), event.who.map(by("who")), event.keywords.map(by("q"))),
        from.length > 0 && sources(from)));
    return Object.assign(node, { event });
  };

  /** Why an event does not count now. */
  const reason = (event) => {
    const text = h("p.soft", {}, m("elsewhere"));
    if (event.superseded_by) {
      api.get(`${path}/${event.superseded_by}`, { signal }).then(({ id, summary }) => fill(text,
        m("replaced"), h("a", { href: `#/chronicles/${it.id}?event=${id}` }, summary), " ",
        h("button.tag", { onclick: () => change(event, { superseded_by: null }) }, m("again"))), () => {});
    }
    return text;
  };

  /** The messages that an event comes from, read when they are asked for. */
  const sources = (ids) => {
    const said = ({ text, author, is_active, chat_id: chat, position }) => [
      h("p.prose", {}, text),
      h("p.soft", {}, `${author}, `, is_active
        ? h("a", { href: `#/chats/${chat}?at=${position}` }, names.get(chat))
        : m("off_path")),
    ];
    const read = (id) => api.get(`/messages/${id}`, { signal }).then(said, () => m("lost"));
    const open = async ({ target }) => fill(target, target.firstChild,
      target.open && (await Promise.all(ids.map(read))).map((each) => h("blockquote", {}, each)));
    return h("details", { ontoggle: open }, h("summary.soft", {}, m("origin", { count: ids.length })));
  };

  // The names in this form are those of the API's query.
  const text = (name) =>
    h("input", { type: "search", name, value: query.get(name), "aria-label": m(name), placeholder: m(name) });
  const choice = (name, first, ...options) =>
    h("select", { name, "aria-label": m(first) }, [["", m(first)], ...options].map(([value, label]) =>
      h("option", { value, selected: String(value) === query.get(name) }, label)));
  const least = (weight) => [weight, m("at_least", { weight: m(`weights.${weight}`) })];
  const filters = h("div.fields", {},
    choice("order", "oldest", ["newest", m("newest")]),
    choice("current", "counting", ["false", m("all")]),
    choice("kind", "any_kind", ...KIND_OPTIONS),
    choice("min_significance", "any_weight", ...[2, 3, 4, 5].map(least)),
    choice("pinned", "any_pin", ["true", m("pinned")]),
    it.chat_ids.length > 1 && choice("chat_id", "any_chat", ...it.chat_ids.map((id) => [id, names.get(id)])),
    text("who"));
  const fold = () => {
    filters.hidden = !filters.hidden;
    opener.setAttribute("aria-expanded", String(!filters.hidden));
  };
  const opener = h("button", { type: "button", onclick: fold }, m("filters"));
  if (!query.size || query.has("event")) fold();
  const form = h("form.row.sieve", { role: "search", onsubmit: (event) => event.preventDefault() },
    text("q"), opener, filters);
  const wanted = () => [...new FormData(form)].filter(([, value]) => value);
  const narrow = (name, value) => {
    form.elements[name].value = value;
    form.dispatchEvent(new Event("input"));
  };

  const more = h("button", { onclick: () => load() }, t("common.more"));
  const empty = h("p.empty");
  const seen = new IntersectionObserver((entries) => entries.at(-1).isIntersecting && load());
  signal.addEventListener("abort", () => seen.disconnect());
  const load = () => attempt(async () => {
    seen.unobserve(more);
    const { signal: ending } = reading;
    const query = { ...Object.fromEntries(wanted()), limit: 100, after: next };
    const page = await api.get(path, { query, signal: ending });
    if (!next) fill(list);
    list.append(...page.items.map(draw));
    next = page.next;
    if (next) seen.observe(more);
    settle();
  });
  const again = () => {
    reading?.abort();
    reading = new AbortController();
    next = null;
    return load();
  };
  form.addEventListener("input", settled(() => {
    history.replaceState(null, "", `#/chronicles/${it.id}?${new URLSearchParams(wanted())}`);
    again();
  }));

  /** A day is said once, where it begins. */
  const settle = () => {
    let before;
    for (const { firstChild: { firstChild: day } } of list.children) {
      day.classList.toggle("same", day.textContent === before);
      before = day.textContent;
    }
    more.hidden = !next;
    empty.hidden = next || list.firstChild;
    empty.textContent = m(wanted().length ? "unmatched" : "empty");
  };
  const put = (event) => {
    const node = () => set(draw(event), { class: "fresh" });
    const old = [...element.querySelectorAll(".timeline > li")].filter((each) => each.event.id === event.id);
    const way = form.elements.order.value ? -1 : 1;
    const behind = [...list.children].find((each) => way * inOrder(each.event, event) > 0);
    for (const each of old) each.replaceWith(node());
    if (!old.length && (behind || !next)) list.insertBefore(node(), behind ?? null);
    settle();
  };

  // Several that become one, or of which one takes the other's place.
  const bar = h("div.card.row.picked", { role: "status", hidden: true });
  const choosing = () => {
    chosen.clear();
    for (const each of list.querySelectorAll(".pick")) each.checked = false;
    bar.hidden = !list.classList.toggle("choosing");
    count();
  };
  const count = () => {
    const events = [...chosen.values()].sort(inOrder);
    fill(bar, h("span.grow", {}, m("chosen", { count: events.length })),
      events.length === 2 && h("button", { onclick: () => replace(...events) }, m("replace")),
      events.length > 1 && h("button.primary", { onclick: () => merge(events) }, m("merge")),
      h("button", { onclick: choosing }, t("common.cancel")));
  };
  const replace = async (old, { id }) => {
    await change(old, { superseded_by: id });
    choosing();
  };
  const merge = async (events) => {
    const all = (name) => [...new Set(events.flatMap((each) => each[name]))];
    const timed = events.find((each) => each.day != null || each.time);
    const value = {
      ...events.toSorted((a, b) => b.significance - a.significance)[0],
      summary: all("summary").join("\n"),
      day: timed?.day,
      time: timed?.time,
      where: all("where").find(Boolean),
      who: all("who"),
      keywords: all("keywords"),
      pinned: all("pinned").includes(true),
    };
    const event_ids = events.map(({ id }) => id);
    const send = (event) => api.post(`${path}/merge`, { event_ids, event });
    if (!(await ask(event_ids.join(), m("merge"), value, send))) return;
    for (const each of [...list.children]) if (event_ids.includes(each.event.id)) each.remove();
    choosing();
    toast(m("merged"));
  };

  const shown = query.get("event");
  const one = shown && (await attempt(() => api.get(`${path}/${shown}`, { signal })));
  await again();
  const element = h("div", {},
    one && h("section.card", {}, h("h2", {}, m("this")), h("ol.timeline", {}, draw(one))),
    form, bar, list, empty, more);
  return { element, add, choosing, put };
}
