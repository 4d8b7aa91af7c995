/** The fields of a campaign's items by kind. */
import { audience as knownTo } from "../core/audience.js";
import { boxes, control } from "../core.js";
import { among, c, field } from "./parts.js";
import { called } from "./world.js";

const line = (name, more) => field(name, "text", { most: 1000, ...more });
const lines = (name) => field(name, "lines", { wide: true });
const area = (name) => field(name, "area", { most: 20_000 });
const whole = (name, min, max) => field(name, "number", { min, max, step: 1 });
const NAME = line("name", { most: 200, required: true });
const SHEET = [
  line("attributes.class"),
  whole("attributes.hp"),
  whole("attributes.hp_max"),
  field("attributes.gold", "number"),
  field("attributes.conditions", "words"),
  lines("attributes.inventory"),
];
const sheetNames = SHEET.map(({ name }) => name.split(".")[1]);

/** A select of a world's items, with an option for none. */
function one(name, items, more) {
  const options = items.map((each) => [each.id, called(each)]);
  if (!more?.required) options.unshift([null, c("none_of_them")]);
  return field(name, "select", { options, ...more });
}

/** Checkboxes for several items. */
const several = (name, items) =>
  field(name, "boxes", { control: boxes, options: items.map((each) => [each.id, called(each)]) });

/** The audience of an item: everyone, the game master, or the selected characters. */
const audience = (world) => knownTo(world.entities("pc", "npc").map((each) => [each.id, each.name]));

/** Parse a text as JSON. Other texts stay as they are. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * Attributes without a field of their own, one per line: "name: value". The patch removes missing
 * ones.
 */
const others = field("attributes", "lines", {
  wide: true,
  control(own) {
    const area = control(own);
    let known = {};
    return {
      ...area,
      read() {
        const pairs = area.read().map((each) => {
          const colon = each.indexOf(":");
          return [each.slice(0, Math.max(0, colon)).trim(), parsed(each.slice(colon + 1).trim())];
        });
        const found = Object.fromEntries(pairs);
        // A line without a name is not saved, and is kept until it has one.
        area.input.setCustomValidity("" in found ? c("no_colon") : "");
        const gone = Object.keys(known).filter((name) => !(name in found));
        return { ...Object.fromEntries(gone.map((name) => [name, null])), ...found };
      },
      write(attributes = {}) {
        known = Object.fromEntries(Object.entries(attributes).filter(([name]) => !sheetNames.includes(name)));
        area.write(Object.entries(known).map(([name, value]) =>
          `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`));
      },
    };
  },
});

/**
 * The steps of a thread, one per line. A finished step stays finished while its text is unchanged.
 */
const objectives = field("objectives", "lines", {
  wide: true,
  control(own) {
    const area = control(own);
    let known = [];
    return {
      ...area,
      read: () => area.read().map((text) => ({ text, done: known.some((each) => each.done && each.text === text) })),
      write(value) {
        known = value ?? [];
        area.write(known.map(({ text }) => text));
      },
    };
  },
});

const KINDS = {
  entity(world, item) {
    const isPerson = /pc/.test(item.kind);
    const places = world.entities("location").filter(({ id }) => id !== item.id);
    return [
      { ...NAME, wide: true },
      item.kind === "pc" && SHEET,
      line("role"),
      line("status"),
      one("location_id", places),
      isPerson && one("character_id", world.cards),
      isPerson && [line("disposition"), line("wants"), area("personality"), lines("voice")],
      area("description"),
      field("aliases", "words", { wide: true }),
      others,
    ].flat();
  },
  thread: (world) => [
    line("title", { most: 200, required: true, wide: true }),
    among("kind", "quest", "storyline", "threat", "rumour"),
    among("tension", "simmering", "rising", "urgent", "critical"),
    among("status", "open", "resolved", "failed", "dormant"),
    among("priority", "low", "medium", "high"),
    area("summary"),
    line("next_step", { wide: true }),
    objectives,
    one("giver_id", world.of("entity")),
    one("clock_id", world.of("clock")),
  ],
  clock: (world, item) => [
    { ...NAME, wide: true },
    field("segments", "select", { options: [4, 6, 8].map((each) => [each, String(each)]) }),
    whole("filled", 0, item.segments ?? 8),
    among("kind", "threat", "goal", "project"),
    one("linked_id", world.of("clock").filter(({ id }) => id !== item.id)),
    line("consequence", { wide: true }),
    field("visible", "check"),
  ],
  fact: (world, item) => [
    field("text", "area", { most: 2000, required: true }),
    one("about_id", world.of("entity")),
    item.id && one("superseded_by", world.of("fact").filter(({ id }) => id !== item.id)),
  ],
  relation: (world) => [
    one("from_id", world.entities("pc", "npc", "faction"), { required: true }),
    one("to_id", world.entities("pc", "npc", "faction"), { required: true }),
    whole("score", -100, 100),
    line("note"),
  ],
  scene: (world) => [
    line("title", { wide: true }),
    one("location_id", world.entities("location")),
    among("status", "open", "closed"),
    several("present", world.entities("pc", "npc")),
    line("stakes", { wide: true }),
    line("type"),
    line("mood"),
    line("variant"),
    whole("beats", 0, 10_000),
    area("summary"),
    lines("key_moments"),
  ],
  chapter: (world) => [
    line("title", { wide: true }),
    area("summary"),
    several("scene_ids", world.of("scene").filter(({ status }) => status !== "open")),
  ],
  echo: () => [
    field("text", "area", { most: 1000, required: true }),
    among("kind", "cost", "threat"),
    field("resolved", "check"),
  ],
  term: () => [
    line("term", { most: 200, required: true }),
    among("status", "proposed", "approved", "raw", "rejected"),
    line("definition", { wide: true }),
  ],
};

/** Return the fields of an item's kind. For a new item, its values choose the fields. */
export const fieldsOf = (kind, world, item) => [...KINDS[kind](world, item).filter(Boolean), audience(world)];

/**
 * Return values by path in the form of the API. "attributes" are those without a field of their
 * own.
 */
export function patchOf(values) {
  const { attributes, ...rest } = values;
  const patch = {};
  for (const [name, value] of Object.entries(rest)) {
    const [member, group] = name.split(".").reverse();
    const where = group ? (patch[group] ??= {}) : patch;
    where[member] = value?.length === 0 ? null : value;
  }
  if (attributes) patch.attributes = { ...attributes, ...patch.attributes };
  return patch;
}
