/** The panel of a chat's members: their presence, and characters that can join. */
import { attempt, fill, finder, h, more, on, t } from "../core.js";
import { face } from "../library/faces.js";
import { acts, alone, enter, likeness, m } from "./cast.js";
import { joining } from "./joining.js";

const STATES = ["present", "muted", "absent"];

function row(member, room) {
  const { id, name, presence, since, narrates } = member;
  const change = alone(room, async () => {
    await attempt(() => enter(room, id, { presence: choice.value }));
    choice.value = room.members.find((each) => each.id === id)?.presence ?? presence;
  });
  const onchange = (event) => {
    if (room.busy) choice.value = presence;
    change(event);
  };
  const choice = h("select", { label: m("presence", { name }), onchange },
    STATES.map((each) => h("option", { value: each, selected: each === presence }, m(each))));
  return h("li",
    likeness(member, {}),
    h("div.grow",
      h("strong.clip", name),
      (narrates || since != null) && h("small.soft", narrates ? m("narrates") : m("since", { n: since + 1 }))),
    choice,
    more(m("acts", { name }), acts(member, room)));
}

export default async function (room, { signal }) {
  const list = h("ul.list.members");
  const find = finder(t("library.search"));
  const others = h("ul.casting");
  const none = h("p.soft");
  const draw = () => {
    const { members, people } = room;
    fill(list, members.map((each) => row(each, room)));
    const free = people.filter(({ id }) => !members.some((each) => each.id === id));
    find.items = free.map((each) => {
      const onclick = alone(room, () => joining(room, each, true));
      return [h("li", h("button.choosing.row", { onclick }, face(each, { small: true }), h("span.grow.clip", each.name))), each.name];
    });
    fill(others, find.items.map(([element]) => element));
    find.input.hidden = free.length < 8;
    none.hidden = free.length > 0;
    none.replaceChildren(m("nobody"), " ", h("a", { href: "#/characters" }, t("library.characters")));
    find.run();
  };
  on(room.events, "chat", draw, signal);
  draw();
  return h("div.stack",
    list,
    h("section.stack", { label: m("add") }, h("h3", m("add")), h("small.help", m("add_help")), find.input, others, none),
    h("p", h("a", { href: `#/chats/${room.chat.id}?panel=settings` }, m("settings"))));
}
