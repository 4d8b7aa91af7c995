/** The start page: the latest chats, or the way to the first one. */
import { api } from "../core/api.js";
import { dialog, menu } from "../core/dialogs.js";
import { act, fill, h, refill } from "../core/dom.js";
import { control, finder, sendform } from "../core/form.js";
import { characters, chats, personas, session } from "../core/store.js";
import { ago, dateTime, t } from "../core/words.js";
import { face } from "../library/faces.js";
import { card, cards, importButton, offer, play } from "../library/start.js";

const rename = (chat) =>
  dialog(t("chats.rename"), (close) => {
    const { element, controls } = sendform({
      fields: [
        { name: "title", label: t("chats.name"), value: chat.title, most: 300, help: t("chats.name_help") },
      ],
      submit: t("common.save"),
      async send(values) {
        await api.patch(`/chats/${chat.id}`, values);
        chats.changed();
        close();
      },
    });
    controls.get("title").input.onfocus = ({ target }) => target.select();
    return element;
  });

function line(chat, cast) {
  const title = chat.title || t("chats.untitled");
  const names = cast.map((each) => each.name).join(", ");
  const more = [
    { label: t("chats.rename"), icon: "edit", act: () => rename(chat) },
    { label: t("common.delete"), icon: "delete", danger: true, act: () => chats.remove(chat.id, title) },
  ];
  const element = h(
    "li",
    {},
    h("span.faces", {}, (cast.length ? cast : [{ name: title }]).slice(0, 2).map((each) => face(each))),
    h(
      "div.grow",
      {},
      h("a.clip", { href: `#/chats/${chat.id}`, dir: "auto" }, title),
      names !== title && h("small.soft.clip", { dir: "auto" }, names),
      h("small.soft", { title: dateTime(chat.updated_at) }, ago(chat.updated_at)),
    ),
    act("more", t("chats.more", { title }), (event) => menu(event.currentTarget, more), "quiet"),
  );
  return [element, `${title}\n${names}`];
}

/** Ask who is to be in a new chat, and who the person is there. */
async function choose() {
  const [people, own] = await Promise.all([characters.all(), personas.all()]);
  dialog(t("chats.new"), (close) => {
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
    const submit = async (event) => {
      event.preventDefault();
      start.disabled = true;
      if (await play(chosen(), { persona_id: persona.read() })) close();
      start.disabled = false;
    };
    const foot = h("footer", {}, h("small.soft.grow", {}, t("chats.group_help")), start);
    return h("form.stack", { onsubmit: submit }, find.input, list, own.length > 0 && persona.element, foot);
  });
}

/** #/ */
export default async function ({ signal, title }) {
  title(t("shell.chats"));
  const heading = h("h1");
  const create = act("plus", t("chats.new"), choose, "primary");
  const found = h("p.soft", { role: "status" });
  const find = finder(t("chats.search"), (count) => (found.textContent = count ? "" : t("chats.none")));
  const list = h("ul.list.talks");
  const body = h("div.stack");

  const draw = async () => {
    const [all, people] = await Promise.all([chats.all(), characters.all()]);
    create.hidden = !people.length;
    heading.textContent = all.length ? t("shell.chats") : t("chats.welcome", { name: session.user.username });
    if (all.length) {
      const cast = new Map(people.map((each) => [each.id, each]));
      all.sort((one, other) => (one.updated_at < other.updated_at ? 1 : -1));
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
