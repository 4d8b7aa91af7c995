/** The start page: recent chats, or the first steps. */
import { api } from "../core/api.js";
import { deleting, more } from "../core/dialogs.js";
import { act, fill, h, refill, tabs } from "../core/dom.js";
import { finder } from "../core/form.js";
import { characters, chats, session } from "../core/store.js";
import { ago, t } from "../core/words.js";
import { face } from "../library/faces.js";
import { asking } from "../library/parts.js";
import { card, importButton, offer } from "../library/start.js";
import { first, lacksModel } from "../models/first.js";
import { movingButton } from "../transfer/moving.js";
import { choose } from "./choose.js";
import { exports } from "./exports.js";

function rename({ id, title }) {
  const [label, help] = [t("chats.name"), t("chats.name_help")];
  const field = { name: "title", label, help, value: title, most: 300 };
  asking(t("chats.rename"), field, t("common.save"), async (values) => {
    await api.patch(`/chats/${id}`, values);
    chats.changed();
  });
}

function line(chat, cast) {
  const title = chat.title || t("chats.untitled");
  const names = cast.map((each) => each.name).join(", ");
  const acts = [
    { label: t("chats.rename"), icon: "edit", act: () => rename(chat) },
    null,
    ...exports(chat),
    null,
    deleting(() => chats.remove(chat.id, title)),
  ];
  const element = h(
    "li",
    {},
    h("span.faces", {}, (cast.length ? cast : [{ name: title }]).slice(0, 2).map((each) => face(each))),
    h(
      "div.grow",
      {},
      h("a.clip", { href: `#/chats/${chat.id}` }, title),
      names !== title && h("small.soft.clip", {}, names),
      h("small.soft", {}, ago(chat.updated_at)),
    ),
    more(t("chats.more", { title }), acts),
  );
  return [element, `${title}\n${names}`];
}

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
  const find = finder(t("chats.search"), (count) => fill(found, !count && t("chats.none")));
  const list = h("ul.list.talks");
  const body = h("div.stack");

  const draw = async () => {
    const [all, people] = await Promise.all([chats.all(), characters.all()]);
    create.hidden = !people.length;
    fill(heading, all.length ? t("shell.chats") : t("chats.welcome", { name: session.user.username }));
    if (all.length) {
      const cast = new Map(people.map((each) => [each.id, each]));
      const castOf = (chat) => chat.character_ids.map((id) => cast.get(id)).filter(Boolean);
      find.items = all.map((chat) => line(chat, castOf(chat)));
      refill(list, find.items.map(([element]) => element));
      find.run();
      if (!list.isConnected) fill(body, find.input, found, list);
    } else if (people.length) {
      const grid = h("ul.people", {}, people.map(card));
      fill(body, h("p.soft.lead", {}, t("chats.choose")), grid, h("div.row", {}, importButton(), movingButton()));
    } else if (await lacksModel(signal)) fill(body, await first(draw, signal), h("div.row.moving", {}, movingButton()));
    else fill(body, h("p.soft.lead", {}, t("chats.about")), offer());
  };
  for (const each of ["chats-changed", "characters-changed"]) addEventListener(each, draw, { signal });
  await draw();
  return h("div.page", {}, h("header", {}, heading, create), areas("chats"), body);
}
