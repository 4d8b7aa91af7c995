/** The sections of a world: the time, the present entities, open threads, and everything else. */
import { act, attempt, control, fill, h, number, on, settled, t } from "../core.js";
import { asking } from "../memory/parts.js";
import { card, locking } from "./card.js";
import { fieldsOf, patchOf } from "./fields.js";
import { c, field, label, moment, TIMES } from "./parts.js";

const PAGE = 50;
const TENSIONS = ["critical", "urgent", "rising", "simmering"];
const isThing = ({ kind }) => ["item", "faction", "ability"].includes(kind);

/** True if a fact is about an entity in the current scene or about its place. */
const isAboutHere = (world, { about_id: id }) => {
  const about = world.get(id);
  return id != null && (id === world.place || about?.kind === "pc" || (about?.kind === "npc" && world.isHere(about)));
};

/**
 * The sections in order: the items `in` them, the fields that `make` asks for, preset values
 * (`fresh`), the sort key (`rank`), and whether they are open. `extra(item, world)` returns
 * additional content of a card.
 */
const SECTIONS = [
  {
    name: "scene", kind: "scene", open: true, make: "title location_id stakes present",
    in: ({ status }) => status === "open",
    fresh: (world) => ({ location_id: world.place }),
  },
  { name: "party", kind: "entity", open: true, make: "name", in: ({ kind }) => kind === "pc", fresh: (world) => ({ kind: "pc", location_id: world.place }) },
  {
    name: "present", kind: "entity", open: true, make: "name role disposition",
    in: (item, world) => item.kind === "npc" && world.isHere(item),
    fresh: (world) => ({ kind: "npc", location_id: world.place }),
  },
  {
    name: "threads", kind: "thread", open: true, make: "title kind tension summary",
    in: ({ status }) => status === "open",
    fresh: () => ({ tension: "rising" }),
    rank: ({ tension }) => TENSIONS.indexOf(tension),
  },
  { name: "clocks", kind: "clock", open: true, make: "name segments kind consequence", in: () => true, fresh: () => ({ segments: 6 }) },
  {
    name: "facts", kind: "fact", open: true, make: "text about_id",
    in: () => true,
    newest: true,
    rank: (item, world) => (item.superseded_by ? 2 : 1) - isAboutHere(world, item),
  },
  { name: "echoes", kind: "echo", open: true, make: "text kind", in: () => true, rank: ({ resolved }) => Number(resolved) },
  { name: "elsewhere", kind: "entity", make: "name role location_id", in: (item, world) => item.kind === "npc" && !world.isHere(item), fresh: () => ({ kind: "npc" }) },
  { name: "places", kind: "entity", make: "name description", in: ({ kind }) => kind === "location", fresh: () => ({ kind: "location" }) },
  { name: "things", kind: "entity", make: "kind name description", in: isThing, fresh: () => ({ kind: "item" }) },
  { name: "relations", kind: "relation", make: "from_id to_id score note", in: () => true },
  { name: "settled", kind: "thread", in: ({ status }) => status !== "open" },
  { name: "closed", kind: "scene", in: ({ status }) => status !== "open", newest: true },
  { name: "chapters", kind: "chapter", in: () => true, newest: true },
];
const THING = field("kind", "select", { options: ["item", "faction", "ability"].map((each) => [each, c(`values.${each}`)]) });

/** The fields that are asked for to create an item. */
function asked({ kind, make }, world, fresh) {
  const names = make.split(" ");
  const fields = [...(names[0] === "kind" ? [THING] : []), ...fieldsOf(kind, world, fresh)];
  return names.map((name) => fields.find((each) => each.name === name)).map((each) => ({ ...each, otherwise: fresh[each.name] }));
}

/** A section with its items as cards. It is drawn while it is open. */
export function section(it, world, signal) {
  const { name, kind, open } = it;
  const cards = new Map();
  const count = h("span.figure");
  const title = c(`sections.${name}`);
  const list = h("ul.things", { label: title });
  const look = settled(() => attempt(() => world.find(name, kind, words.value)));
  const words = h("input.finder", {
    type: "search", placeholder: c("find", { name: title }), label: c("find", { name: title }), maxlength: 200,
    oninput: () => (words.value.trim() ? look() : draw()),
  });
  const note = h("div.stack.cut", { hidden: true }, h("p.soft", c("cut")), words);
  let most = PAGE;
  const rest = h("button", { onclick: () => draw((most += PAGE)) }, t("common.more"));
  const add = async () => {
    const fresh = it.fresh?.(world) ?? {};
    const known = Object.fromEntries(Object.entries(fresh).filter(([, value]) => value != null));
    await asking(`world.${world.id}.${name}`, c(`add.${name}`), asked(it, world, fresh), {}, (values) => {
      const given = Object.entries(patchOf(values)).filter(([, value]) => value != null);
      return world.add(kind, { ...known, ...Object.fromEntries(given) });
    });
  };
  const found = () => {
    // Items that are being edited stay in the section.
    let all = world.of(kind).filter((item) => cards.get(item.id)?.isOpen || it.in(item, world));
    if (it.newest) all.reverse();
    const wanted = words.value.trim().toLowerCase();
    if (wanted) all = all.filter((item) => cards.get(item.id)?.isOpen || JSON.stringify(item).toLowerCase().includes(wanted));
    const rank = (item) => it.rank?.(item, world) ?? 0;
    return all.toSorted((one, other) => rank(one) - rank(other));
  };
  const draw = () => {
    const items = found();
    count.textContent = items.length ? number(items.length) : "";
    element.hidden = !it.make && !items.length;
    if (!element.open) return;
    const shown = items.slice(0, most).map((item) => {
      const known = cards.get(item.id);
      const made = known ?? card(world, kind, item, signal, { closed: draw, extra: it.extra });
      known?.show(item);
      return made;
    });
    cards.clear();
    shown.forEach((each) => cards.set(each.id, each));
    const nodes = shown.map(({ element: node }) => node);
    for (const node of [...list.children]) if (!nodes.includes(node)) node.remove();
    // Cards that stay in place are not moved, because one may have the focus.
    nodes.forEach((node, place) => list.children[place] !== node && list.insertBefore(node, list.children[place]));
    rest.hidden = items.length <= most;
    note.hidden = !world.cut.has(kind);
  };
  const element = h("details.group", { open, ontoggle: () => draw() },
    h("summary", title, " ", count),
    note, list, rest,
    it.make && act("plus", c(`add.${name}`), () => attempt(add), "plain"));
  on(world, "change", draw, signal);
  draw();
  return element;
}

/** Flags, one per line. Each keeps its value. */
const FLAGS = field("flags", "lines", {
  wide: true,
  control(own) {
    const area = control(own);
    let known = {};
    return {
      ...area,
      read() {
        const names = area.read().map((each) => each.trim());
        const gone = Object.keys(known).filter((name) => !names.includes(name));
        return Object.fromEntries([...gone.map((name) => [name, null]), ...names.map((name) => [name, known[name] ?? true])]);
      },
      write(flags) {
        known = flags;
        area.write(Object.keys(flags));
      },
    };
  },
});

/** The day, the time and the flags, edited in place. */
function now(world, signal) {
  const view = h("div.row");
  const body = h("div.edit");
  let open = null;
  const change = (patch) => world.change("world", null, patch);
  const close = async () => {
    await open?.form.flush();
    open = null;
    fill(body);
    view.querySelector("button").focus();
  };
  const edit = () => {
    open ??= locking({
      fields: [...TIMES, FLAGS],
      value: world.state,
      locked: () => world.state.locked,
      signal,
      save: (patch, isTyped) => (isTyped ? change(patch) : attempt(() => change(patch))),
    });
    fill(body, open.form.element, h("footer", h("button", { onclick: close }, t("common.done"))));
    body.querySelector("input").focus();
  };
  const draw = () => {
    const when = moment(world.state);
    const flag = ([name, is]) => h("button.tag", {
      pressed: is, onclick: () => world.press("world", null, { flags: { [name]: !is } }),
    }, name);
    fill(view,
      world.state.precarity && h("p.row",
        h("span.tag", { title: world.state.precarity.voice }, world.state.precarity.label),
        ["heat", "wanted"].filter((each) => world.state.precarity[each] != null).map((each) =>
          h("span.soft", `${label(each)} ${number(world.state.precarity[each])}`))),
      h("button.value.when", { onclick: edit, title: label("day"), label: `${label("day")}: ${when}` }, when),
      Object.entries(world.state.flags).map(flag));
    if (!open) return;
    if (!open.form.isUnsaved) open.form.write(world.state);
    open.relock();
  };
  const onkeydown = (event) => {
    if (event.key !== "Escape" || !open) return;
    event.preventDefault();
    event.stopPropagation();
    close();
  };
  on(world, "change", draw, signal);
  draw();
  return h("div.now", { onkeydown }, view, body);
}

/** Links to the other parts of a campaign, with the number of proposed terms. */
function ways(world, signal) {
  const row = h("nav.row.ways", { label: c("parts") });
  const place = (tab) => `#/campaigns/${world.id}?tab=${tab}`;
  const draw = () => {
    const count = world.of("term").filter(({ status }) => status === "proposed").length;
    fill(row,
      h("a", { href: place("glossary") }, c("tabs.glossary"), count > 0 && [" ", h("span.tag.badge", c("proposed", { count }))]),
      h("a", { href: place("ledger") }, c("tabs.ledger")),
      h("a", { href: place("versions") }, c("tabs.versions")),
      h("a", { href: place("settings") }, c("tabs.settings")));
  };
  on(world, "change", draw, signal);
  draw();
  return row;
}

/** All sections of a world. Next to a chat they begin with links to the other parts. */
export const sections = (world, signal, isAside) =>
  h("div.world",
    now(world, signal),
    isAside && ways(world, signal),
    h("div.sections", SECTIONS.map((each) => section(each, world, signal))));
