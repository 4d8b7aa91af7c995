/** The start page: the chats, or the first steps. */
import {
  act, characters, chats, fill, finder, h, icon, kept, on, session, t, tabs, tagFilter, texts, usedAt,
} from "../core.js";
import { longList } from "../core/long-list.js";
import { card, importButton, offer } from "../library/start.js";
import { first, lacksModel } from "../models/first.js";
import { movingButton } from "../transfer/moving.js";
import { bulk } from "./bulk.js";
import { choose } from "./choose.js";
import { entry, textOf, titleOf } from "./entry.js";

const latest = (time) => (one, other) => (time(one) < time(other) ? 1 : -1);
const SORTS = {
  latest: latest(usedAt),
  created: latest((chat) => chat.created_at),
  title: (one, other) => titleOf(one).localeCompare(titleOf(other), texts.language, { numeric: true }),
};
const pinned = (one, other) => Boolean(other.pinned_at) - Boolean(one.pinned_at);

/** Tabs of chats and campaigns. */
export const areas = (here) => tabs(t("shell.chats"), here, [
  ["chats", t("shell.chats"), "#/"],
  ["campaigns", t("campaign.campaigns"), "#/campaigns"],
]);

/** Route: #/ */
export default async function ({ signal, title }) {
  title(t("shell.chats"));
  const heading = h("h1");
  const create = act("plus", t("chats.new"), () => choose(), "primary");
  const found = h("p.soft", { role: "status" });
  const tags = new Set();
  const told = (count, items) => {
    fill(found, !count && t("chats.none"));
    rows.show(items.map(([, , chat]) => chat));
  };
  const find = finder(t("chats.search"), told, tags);
  const list = h("ul.list.talks");
  const body = h("div.stack");
  let all = [];
  let sort = kept.get("chats.sort", "latest");
  let isArchive = false;

  const cast = new Map();
  const castOf = (chat) => chat.character_ids.map((id) => cast.get(id)).filter(Boolean);
  const rows = longList(list, (chat) => entry(chat, castOf(chat), several.box(chat)), signal);
  const starters = longList(h("ul.people"), (each) => card(each), signal);

  const select = act("check", t("chats.select"), () => several.turn(true));
  const several = bulk(list, {
    shown: () => rows.items,
    button: select,
    signal,
    turned(is) {
      tools.hidden = is;
      if (is) several.element.querySelector("button").focus();
    },
  });

  const order = h("select", {
    label: t("chats.sort"),
    onchange() {
      kept.set("chats.sort", (sort = order.value));
      show();
    },
  }, Object.keys(SORTS).map((name) => h("option", { value: name, selected: name === sort }, t(`chats.sorts.${name}`))));
  const archive = h("button", {
    onclick() {
      isArchive = !isArchive;
      show();
    },
  });
  const tools = h("div.row.ordering", find.input, order, archive, select);
  const filter = tagFilter(t("chats.tags"), tags, find);

  /** Show the chats, or those of the archive. */
  function show() {
    const archived = all.filter((chat) => chat.archived_at);
    isArchive &&= archived.length > 0;
    const items = isArchive ? archived : all.filter((chat) => !chat.archived_at);
    items.sort((one, other) => pinned(one, other) || SORTS[sort](one, other));
    archive.hidden = !archived.length;
    archive.ariaPressed = isArchive;
    fill(archive, icon("archive"), t("chats.archive_of", { count: archived.length }));
    filter.show(items);
    find.items = items.map((chat) => [null, textOf(chat, castOf(chat)), chat]);
    find.run();
    if (!items.length) fill(found, t("chats.all_archived"));
    several.keep(all);
  }

  const draw = async () => {
    const [talks, people] = await Promise.all([chats.all(), characters.all()]);
    all = talks;
    create.hidden = !people.length;
    fill(heading, all.length ? t("shell.chats") : t("chats.welcome", { name: session.user.username }));
    if (all.length) {
      for (const each of people) cast.set(each.id, each);
      show();
      if (!list.isConnected) fill(body, tools, several.element, filter.element, found, rows.element);
    } else if (people.length) {
      fill(body, h("p.soft.lead", t("chats.choose")), starters.element, h("div.row", importButton(), movingButton()));
      starters.show(people);
    } else if (await lacksModel(signal)) fill(body, await first(draw, signal), h("div.row", movingButton()));
    else fill(body, h("p.soft.lead", t("chats.about")), offer());
  };
  on(window, "chats-changed", draw, signal);
  const recast = () => {
    cast.clear();
    rows.clear();
    return draw();
  };
  on(window, "characters-changed", recast, signal);
  await draw();
  return h("div.page", h("header", heading, create), areas("chats"), body);
}
