/** The events of a chronicle in the order of the story. */
import {
  act, api, attempt, date, deleting, fill, h, icon, isPending, more, on, sendLater, t,
} from "../core.js";
import { EVENT, KINDS, asking, m, sieve, signals, titles } from "./parts.js";

const PAGE = 200;

/** @returns {{element, add, refresh}} `add()` asks for a new event, `refresh()` shows changes. */
export async function timeline(it, query, signal) {
  const path = `/chronicles/${it.id}/events`;
  const names = await titles();
  const list = h("ol.timeline", { label: m("timeline") });
  const spot = h("div");
  const bar = h("div.card.row.picked", { role: "status" });
  const empty = h("p.empty", { hidden: true });
  const rest = h("button", { onclick: () => refresh((count += PAGE)) }, t("common.more"));
  const chosen = new Set();
  let events = [];
  let nodes = new Map();
  let count = PAGE;
  const next = signals(signal);

  const filters = sieve(`/chronicles/${it.id}`, query, signal, {
    q: m("q"),
    who: m("who"),
    kind: [["", m("any_kind")], ...KINDS],
    current: [["", m("counting")], ["false", m("all")]],
    order: [["", m("oldest")], ["newest", m("newest")]],
  }, () => refresh((count = PAGE)));

  /** Read the events from the start. Unchanged ones are not drawn again. */
  const read = async () => {
    const ending = next();
    const found = [];
    let after;
    do {
      const query = { ...filters.wanted(), limit: PAGE, after };
      const page = await api.get(path, { query, signal: ending });
      ending.throwIfAborted();
      found.push(...page.items);
      after = page.next;
    } while (after && found.length < count);
    events = found;
    rest.hidden = !after;
    show();
  };
  const refresh = () => attempt(read);

  const show = () => {
    const kept = nodes;
    nodes = new Map();
    let day;
    for (const event of events.filter(({ id }) => !isPending(`${path}/${id}`))) {
      const old = kept.get(event.id);
      const node = JSON.stringify(old?.event) === JSON.stringify(event) ? old : draw(event);
      // A day is shown once, where it begins.
      const before = day;
      day = node.querySelector("b").textContent;
      node.classList.toggle("same", day && day === before);
      nodes.set(event.id, node);
    }
    // Unchanged nodes stay in place, so that the view does not jump.
    for (const node of [...list.children]) if (nodes.get(node.event.id) !== node) node.remove();
    [...nodes.values()].forEach((node, place) => {
      if (list.children[place] !== node) list.insertBefore(node, list.children[place]);
    });
    empty.hidden = nodes.size || !rest.hidden;
    empty.textContent = m(Object.keys(filters.wanted()).length ? "unmatched" : "empty");
  };
  const feature = (event) =>
    fill(spot, h("section.card", h("h2", m("this")), h("ol.timeline", draw(event))));

  /** Show the new state of an event, even if the list leaves it out. */
  const put = async (event) => {
    await refresh();
    const isFeatured = spot.querySelector("li")?.event.id === event.id;
    if (isFeatured || !nodes.has(event.id)) feature(event);
  };
  const ask = async (key, label, value, send) => {
    const event = await asking(`event.${key}`, label, EVENT, value, send);
    if (event) await put(event);
    return event;
  };
  const add = async () => {
    const event = await ask(it.id, m("add"), {}, (values) => api.post(path, values));
    if (event) (nodes.get(event.id) ?? spot).scrollIntoView({ block: "center" });
  };
  const change = ({ id, revision: ifMatch }, changes) => api.patch(`${path}/${id}`, changes, { ifMatch });
  const alter = (event, changes) => attempt(async () => put(await change(event, changes)));
  const edit = (event) =>
    ask(`${event.id}.${event.revision}`, t("common.edit"), event, (values) => change(event, values));
  const remove = ({ id }) => sendLater(m("deleted"), `${path}/${id}`, {
    hide: () => spot.querySelector("li")?.event.id === id && fill(spot),
    // The events that it replaced are active again.
    then: refresh,
  });

  const draw = (event) => {
    const { id, pinned, summary, significance: weight, source_message_ids: from } = event;
    const by = (name) => (value) =>
      h("button.tag", { class: name, onclick: () => filters.narrow(name, value) }, value);
    const onchange = ({ target }) => choose(id, target.checked);
    const checked = chosen.has(id);
    const pick = h("input.pick", { type: "checkbox", label: summary, checked, onchange });
    const menu = more(m("acts", { name: summary.slice(0, 80) }), [
      { label: t("common.edit"), icon: "edit", act: () => edit(event) },
      { label: m(pinned ? "unpin" : "pin"), icon: "pin", act: () => alter(event, { pinned: !pinned }) },
      { label: m("choose"), icon: "merge", act: () => pick.click() },
      deleting(() => remove(event)),
    ]);
    const node = h("li", { class: event.is_current ? "" : "aside", vars: { weight } },
      h("div.when",
        h("b", event.day == null ? !event.time && date(event.happened_at) : m("story_day", event)),
        h("span", event.time)),
      h("article",
        h("header.row.soft",
          pick,
          h("b", m(`kinds.${event.kind}`)),
          h("span.grow",
            m(`source.${event.source}`), event.edited && m("edited"),
            h("span.unseen", m("weighs", { weight }), pinned && m("is_pinned"))),
          pinned && icon("pin"),
          menu),
        h(event.superseded_by && !event.is_current ? "s.prose" : "p.prose", summary),
        !event.is_current && reason(event),
        h("div.row",
          event.where && by("q")(event.where), event.who.map(by("who")), event.keywords.map(by("q"))),
        from.length > 0 && sources(from)));
    return Object.assign(node, { event });
  };

  /** The reason why an event is inactive. */
  const reason = (event) => h("p.soft", event.superseded_by
    ? [
        h("a", { href: `#/chronicles/${it.id}?event=${event.superseded_by}` }, m("replaced")), " ",
        h("button.tag", { onclick: () => alter(event, { superseded_by: null }) }, m("again")),
      ]
    : m("elsewhere"));

  /** The source messages of an event, loaded on demand. */
  const sources = (ids) => {
    const said = ({ text, author, is_active, chat_id: chat, position }) => [
      h("p.prose", text),
      h("p.soft", `${author}, `, is_active
        ? h("a", { href: `#/chats/${chat}?at=${position}` }, names.get(chat))
        : m("off_path")),
    ];
    const read = (id) => api.get(`/messages/${id}`, { signal }).then(said, () => m("lost"));
    const open = async ({ target }) => fill(target, target.firstChild,
      target.open && (await Promise.all(ids.map(read))).map((each) => h("blockquote", each)));
    return h("details", { ontoggle: open }, h("summary.soft", m("origin", { count: ids.length })));
  };

  // Selected events can be merged.
  const choose = (id, is) => {
    chosen[is ? "add" : "delete"](id);
    fill(bar, h("span.grow", m("chosen", { count: chosen.size })),
      chosen.size > 1 && h("button.primary", { onclick: merge }, m("merge")),
      h("button", { onclick: leave }, t("common.cancel")));
    element.classList.add("choosing");
  };
  const leave = () => {
    chosen.clear();
    element.classList.remove("choosing");
    for (const each of element.querySelectorAll(".pick")) each.checked = false;
  };
  const merge = () => {
    const [first, ...others] = [...chosen];
    leave();
    sendLater(m("merge_text", { count: others.length + 1 }), `${path}/merge`, {
      method: "POST",
      json: { event_ids: [first, ...others] },
      hides: others.map((each) => `${path}/${each}`),
      then: put,
    });
  };

  const element = h("div", spot, filters.element, bar, list, empty, rest);
  on(window, "pending", show, signal);
  const id = query.get("event");
  if (id) await attempt(async () => feature(await api.get(`${path}/${id}`, { signal })));
  await read();
  return { element, add, refresh };
}
