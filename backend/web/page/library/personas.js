/** Personas: the user's roles in chats. */
import { act, api, fill, h, on, personas, t } from "../core.js";
import { face } from "./faces.js";
import { NAME, editing, naming, overview, portrait, say } from "./parts.js";

const FIELDS = [
  NAME,
  {
    name: "description",
    label: say("persona_description"),
    help: say("persona_help"),
    kind: "area",
    count: true,
  },
];

/** Route: #/personas */
export default async function ({ signal, title }) {
  title(say("personas"));
  let { persona_id: standard } = await api.get("/me/settings", { signal });
  const list = h("ul.stack");
  const rows = new Map();

  const prefer = async (id) => {
    await api.patch("/me/settings", { persona_id: id });
    standard = id;
    await draw();
  };

  const make = (item) => {
    const summary = h("summary.persona");
    const foot = h("div.row");
    const show = () => {
      const { id, name } = item;
      const is = id === standard;
      const label = say(is ? "standard_not" : "standard_make");
      const prefers = act(is ? "check" : "pin", label, () => prefer(is ? null : id));
      const erase = act("delete", t("common.delete"), () => personas.remove(id, name), "danger");
      fill(
        summary,
        face(item, { kind: "personas" }),
        h(
          "div.grow",
          h("h2.clip", name),
          h("p.soft.clip", item.description),
        ),
        is && h("span.tag", say("standard")),
      );
      fill(foot, prefers, erase);
    };
    const open = ({ target }) => {
      if (!target.open || body.firstChild) return;
      const form = editing(personas, item, [{ fields: FIELDS }], signal, show);
      fill(body, portrait(personas, item, signal), h("div.stack", form.element, foot));
    };
    const body = h("div.editor");
    return { show, element: h("li.card", h("details", { ontoggle: open }, summary, body)) };
  };

  const draw = async () => {
    const all = (await personas.all()).map((item) => {
      const row = rows.get(item.id) ?? make(item);
      rows.set(item.id, row);
      row.show();
      return row.element;
    });
    fill(list, all.length ? all : h("li.empty", say("personas_none")));
  };
  const opened = async ({ id }) => {
    await draw();
    rows.get(id).element.firstChild.open = true;
  };
  const add = () => naming(personas, say("new_persona"), opened);
  on(window, "personas-changed", draw, signal);
  await draw();
  const create = act("plus", say("new_persona"), add, "primary");
  return overview("personas", create, h("p.soft.lead", say("personas_help")), list);
}
