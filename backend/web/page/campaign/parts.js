/** Shared parts of the campaign views: texts, fields, creation, import, and menus. */
import {
  api, attempt, campaigns, chats, chronicles, combine, deleting, download, h, has, icon, labels,
  t,
} from "../core.js";
import { importing } from "../core/importing.js";
import { asking } from "../memory/parts.js";

/** A text of the campaign views. */
export const c = (path, values) => t(`campaign.${path}`, values);

/**
 * The label of a field: "attributes.hp" is "HP". Fields of a rule system have labels of their own.
 */
export function label(name) {
  const own = name.split(".").at(-1);
  return has(`campaign.fields.${own}`) ? labels(c(`fields.${own}`)).label : own.replaceAll("_", " ");
}

/** A field of a form. `name` is a path. texts.json has its label, and its help after a bar. */
export const field = (name, kind, more) => ({ name, kind, ...labels(c(`fields.${name.split(".").at(-1)}`)), ...more });

/** A select of these values. */
export const among = (name, ...values) =>
  field(name, "select", { options: values.map((each) => [each, c(`values.${each}`)]) });

const NAME = { name: "name", label: t("common.name"), required: true, most: 200 };
const DAY = field("day", "number", { min: 1, max: 1e6, step: 1, required: true });
const TIME = field("time_of_day", "text", { most: 1000 });
const BRIEF = [
  field("brief.setting", "area", { most: 20_000, count: true }),
  field("brief.city", "text", { most: 1000, wide: true }),
  field("brief.hook", "area", { most: 20_000, count: true }),
  field("brief.roster", "area", { most: 20_000, count: true }),
];
const count = (name, max) => field(`settings.${name}`, "number", { min: 1, max, step: 1, required: true });

/** The settings of a campaign in groups. */
export const GROUPS = [
  { fields: [{ ...NAME, wide: true }, ...BRIEF] },
  {
    title: c("playing"),
    open: true,
    fields: [
      field("settings.tools", "check", { wide: true }),
      among("settings.dice", "pool", "srd"),
    ],
  },
  {
    title: c("remembering"),
    open: true,
    fields: [
      count("memory_interval", 100),
      count("compaction_interval", 100),
      count("scene_beats", 1000),
      { ...count("chapter_scenes", 50), min: 3 },
      { ...count("chapter_tokens", 20_000), min: 0 },
      { ...count("glossary_tokens", 20_000), min: 0 },
      field("settings.summaries", "check", { wide: true }),
      field("settings.approve_terms", "check", { wide: true }),
      field("settings.hidden_information", "check", { wide: true }),
    ],
  },
];

/** The form of the day and the time of day. */
export const TIMES = [DAY, TIME];

/** Members of an object by their paths, as forms name them: `{ "brief.city": … }`. */
export const flat = (value, groups) =>
  Object.fromEntries(groups.flatMap(({ fields }) => fields).map(({ name }) =>
    [name, name.split(".").reduce((found, part) => found?.[part], value)]));

/** Convert values by path to an object: `{ brief: { city } }`. */
export function nested(values) {
  const made = {};
  for (const [name, value] of Object.entries(values)) {
    const [member, group] = name.split(".").reverse();
    (group ? (made[group] ??= {}) : made)[member] = value;
  }
  return made;
}

/** Ask for a new campaign, and open it. */
export async function make() {
  const known = await attempt(() => api.get("/campaigns/rules"));
  if (!known) return;
  const rules = known.items.map(({ name, title }) => [name, title]);
  const fields = [{ ...NAME, wide: true }, field("rules", "select", { options: rules, otherwise: "freeform" }),
    { ...DAY, otherwise: 1 }, TIME, ...BRIEF];
  const made = await asking("campaign", c("make"), fields, {}, (values) => api.post("/campaigns", nested(values)));
  if (!made) return;
  campaigns.changed();
  location.hash = `#/campaigns/${made.id}`;
}

/** Import of zip files: campaigns that were exported here, and vaults of Markdown. */
export const files = importing({
  accept: ".zip,application/zip",
  async send(file, row) {
    const { id, name, warnings } = await api.upload("/campaigns/import", file, row);
    for (const each of [campaigns, chats, chronicles]) each.changed();
    const told = warnings.length > 0 && h("details",
      h("summary", c("warnings", { count: warnings.length })), warnings.map((each) => h("small", each)));
    return { text: [h("a", { href: `#/campaigns/${id}` }, name), told], sign: icon(warnings.length ? "alert" : "check") };
  },
});

/** The menu of a campaign. `gone()` is called after its deletion. */
export function acts(it, gone) {
  const path = `/campaigns/${it.id}`;
  const saving = (format) => ({
    label: c(`export.${format}`),
    icon: "download",
    act: () => download(`${path}/export?format=${format}`),
  });
  const remove = () => {
    campaigns.remove(it.id, it.name, chats.changed);
    gone?.();
  };
  return [saving("json"), saving("vault"), null, deleting(remove)];
}

/** The day and time of a story: "Day 5, morning". */
export const moment = ({ day, time_of_day: time }) => combine([c("day", { day }), time], ", ");
