/** Views of a world's items. Their values are buttons that open the field in the form. */
import { combine, h, icon, number, svg } from "../core.js";
import { dial } from "./clock.js";
import { c, label } from "./parts.js";

/** A value that opens its field when clicked. Hidden if it is empty. */
const value = (edit, name, text, look = "") => {
  if (text === "" || text == null) return false;
  const title = label(name);
  const attributes = { class: `value ${look}`, title, onclick: () => edit(name) };
  return h("button", { ...attributes, label: `${title}: ${text}` }, text);
};
const title = (edit, name, text) => h("h4.grow", value(edit, name, text || c("nameless"), "title"));
const tag = (edit, name, text, look) => value(edit, name, text, `tag ${look ?? ""}`);
const secret = ({ audience }) => audience !== "public" &&
  h("span.tag", { title: c(audience === "gm" ? "values.gm" : "values.some") }, icon("hide"), c(audience === "gm" ? "gm_only" : "some_only"));

/** Hit points as a bar with figures. */
function health(edit, { hp, hp_max: most }) {
  if (hp == null) return false;
  const share = most > 0 ? Math.max(0, Math.min(1, hp / most)) : 1;
  const bar = svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { width: 100, height: 6 }), svg("rect", { width: share * 100, height: 6, class: share <= 0.34 ? "low" : "well" }));
  return h("div.health", bar,
    value(edit, "attributes.hp", most == null ? `HP ${number(hp)}` : `HP ${number(hp)} / ${number(most)}`));
}

/** Stress as a row of boxes. */
const stress = (edit, { stress: at, stress_max: most = 9 }) => Number.isInteger(at) && h("button.value.marks", {
  title: label("stress"), label: `${label("stress")}: ${at} / ${most}`,
  onclick: () => edit("attributes"),
}, label("stress"), Array.from({ length: Math.min(most, 20) }, (_, place) => h("i", { class: place < at ? "on" : "" })));

const SHEET = ["stress", "stress_max", "trauma", "harm", "class", "hp", "hp_max", "gold", "conditions", "inventory"];
const listed = (one) => (Array.isArray(one) ? one : one ? [one] : []);

function entity(item, world, edit) {
  const { attributes: a, kind } = item;
  const isPerson = /pc/.test(kind);
  const isPlayer = kind === "pc";
  const rest = Object.entries(a).filter(([name, each]) => !(isPlayer && SHEET.includes(name)) && typeof each !== "object");
  return [
    h("header.row",
      title(edit, "name", item.name),
      isPlayer && value(edit, "attributes.class", a.class, "soft"),
      item.status !== "active" && tag(edit, "status", item.status),
      secret(item)),
    isPlayer && health(edit, a),
    isPlayer && stress(edit, a),
    h("p.row",
      isPerson && tag(edit, "disposition", item.disposition),
      value(edit, "role", item.role, "soft"),
      isPlayer && a.gold != null && value(edit, "attributes.gold", c("gold", { gold: a.gold }), "soft"),
      world.name(item.location_id) && value(edit, "location_id", c("at", { place: world.name(item.location_id) }), "soft")),
    isPlayer && h("p.row",
      [...listed(a.conditions), ...listed(a.harm), ...listed(a.trauma)].map((each) => tag(edit, "attributes.conditions", each, "warn")),
      listed(a.inventory).map((each) => tag(edit, "attributes.inventory", each))),
    isPerson
      ? value(edit, "voice", item.voice.join("; "), "quote")
      : value(edit, "description", item.description, "text"),
    rest.length > 0 && h("p.row", rest.map(([name, each]) => tag(edit, "attributes", `${label(name)} ${each}`))),
  ];
}

function thread(item, world, edit) {
  const { tension, objectives } = item;
  const tick = (at) => world.press("thread", item, {
    objectives: objectives.map((each, place) => (place === at ? { ...each, done: !each.done } : each)),
  });
  return [
    h("header.row",
      title(edit, "title", item.title),
      item.status === "open"
        ? tag(edit, "tension", c(`values.${tension}`), tension)
        : tag(edit, "status", c(`values.${item.status}`)),
      secret(item)),
    value(edit, "summary", item.summary, "text"),
    item.next_step && value(edit, "next_step", `→ ${item.next_step}`, "text"),
    objectives.length > 0 && h("ul.steps", objectives.map(({ text, done }, at) =>
      h("li", h("label.row",
        h("input", { type: "checkbox", checked: done, onchange: () => tick(at) }),
        h("span.grow", text))))),
  ];
}

const clock = (item, world, edit) => h("div.row",
  dial(item, (filled) => world.press("clock", item, { filled })),
  h("div.grow",
    h("header.row", title(edit, "name", item.name), secret(item),
      !item.visible && h("span.tag", icon("hide"), c("unseen"))),
    h("p.row",
      value(edit, "filled", c("filled", item), "soft"),
      item.filled >= item.segments ? tag(edit, "filled", c("full"), item.kind === "threat" ? "warn" : "urgent") : tag(edit, "kind", c(`values.${item.kind}`))),
    item.consequence && value(edit, "consequence", `→ ${item.consequence}`, "text")));

const fact = (item, world, edit) => [
  h(item.superseded_by ? "s" : "div", value(edit, "text", item.text, "text")),
  h("p.row",
    value(edit, "about_id", world.name(item.about_id), "soft"),
    item.superseded_by && h("span.tag", c("superseded")),
    secret(item)),
];

const relation = (item, world, edit) => h("p.row",
  value(edit, "from_id", world.name(item.from_id)),
  h("span.soft", "→"),
  value(edit, "to_id", world.name(item.to_id)),
  tag(edit, "score", `${item.label} ${number(item.score)}`),
  value(edit, "note", item.note, "soft"),
  secret(item));

const scene = (item, world, edit) => [
  h("header.row", title(edit, "title", item.title || world.name(item.location_id)), secret(item)),
  h("p.row",
    item.title && world.name(item.location_id) && value(edit, "location_id", c("at", { place: world.name(item.location_id) }), "soft"),
    tag(edit, "type", item.type),
    tag(edit, "mood", combine([item.mood, item.variant], ", ")),
    item.beats > 0 && value(edit, "beats", c("beats", { count: item.beats }), "soft")),
  value(edit, "stakes", item.stakes, "text"),
];

const chapter = (item, world, edit) => [
  h("header.row", title(edit, "title", item.title), secret(item)),
  value(edit, "summary", item.summary, "text"),
  item.scene_ids.length > 0 && h("p.row", value(edit, "scene_ids", combine(item.scene_ids.map((id) => world.name(id)), ", "), "soft")),
];

const echo = (item, world, edit) => [
  h(item.resolved ? "s" : "div", value(edit, "text", item.text, "text")),
  h("p.row", tag(edit, "kind", c(`values.${item.kind}`), item.kind === "threat" && !item.resolved ? "warn" : ""), secret(item)),
];

const term = (item, world, edit) => [
  h("header.row",
    title(edit, "term", item.term),
    item.uses > 0 && h("span.figure", c("uses", { count: item.uses })),
    item.status !== "approved" && tag(edit, "status", c(`values.${item.status}`)),
    secret(item)),
  value(edit, "definition", item.definition, "text"),
];

export const VIEWS = { entity, thread, clock, fact, relation, scene, chapter, echo, term };
