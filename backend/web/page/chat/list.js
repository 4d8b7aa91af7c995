/** The start page: the latest chats, or the way to the first one. */
import { api } from "../core/api.js";
import { deleting, dialog, more } from "../core/dialogs.js";
import { act, fill, h, refill } from "../core/dom.js";
import { control, finder } from "../core/form.js";
import { characters, chats, personas, session } from "../core/store.js";
import { ago, t } from "../core/words.js";
import { face } from "../library/faces.js";
import { asking } from "../library/parts.js";
import { card, cards, importButton, offer, once, play } from "../library/start.js";

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

/** Ask who is to be in a new chat, and who the person is there. */
async function choose() {
  const [people, own] = await Promise.all([characters.all(), personas.all()]);
  dialog(t("chats.new"), () => {
    const find = finder(t("library.search"));
    find.items = people.map((item) => {
      const box = h("input", { type: "checkbox", value: item.id });
      const label = h("label.row", {}, box, face(item, { small: true }), h("span.grow.clip", {}, item.name));
      return [h("li", {}, label), item.name];
    });
    const options = [[null, t("chats.persona_standard")], ...own.map((each) => [each.id, each.name])];
    const persona = control({ name: "persona", kind: "select", label: t("chats.persona"), options });
    const start = h("button.primary", { disabled: true }, t("chats.start"));
    const list = h("ul.casting", {}, find.items.map(([element]) => element));
    const chosen = () => [...list.querySelectorAll(":checked")].map((box) => box.value);
    list.onchange = () => (start.disabled = !chosen().length);
    start.onclick = once(() => play(chosen(), { persona_id: persona.read() }));
    const foot = h("footer", {}, h("small.soft.grow", {}, t("chats.group_help")), start);
    const stay = (event) => event.preventDefault();
    return h("form.stack", { onsubmit: stay }, find.input, list, own.length > 0 && persona.element, foot);
  });
}

/** #/ */
export default async function ({ signal, title }) {
  title(t("shell.chats"));
  const heading = h("h1");
  const create = act("plus", t("chats.new"), choose, "primary");
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
      fill(body, h("p.soft.lead", {}, t("chats.choose")), grid, h("div.row", {}, importButton()));
    } else fill(body, h("p.soft.lead", {}, t("chats.about")), offer());
  };
  for (const each of ["chats-changed", "characters-changed"]) addEventListener(each, draw, { signal });
  await draw();
  const view = h("div.page", {}, h("header", {}, heading, create), cards.element, body);
  cards.at(view, signal);
  return view;
}
