/** Personas: who the person is in a chat. */
import { api } from "../core/api.js";
import { act, fill, h, refill } from "../core/dom.js";
import { personas } from "../core/store.js";
import { t } from "../core/words.js";
import { face } from "./faces.js";
import { editing, naming, portrait, tabs } from "./parts.js";

const FIELDS = [
  { name: "name", label: t("common.name"), most: 200, wide: true, required: true },
  {
    name: "description",
    label: t("library.persona_description"),
    help: t("library.persona_help"),
    kind: "area",
    count: true,
  },
];

/** #/personas */
export default async function ({ signal, title }) {
  title(t("library.personas"));
  let { persona_id: standard } = await api.get("/me/settings", { signal });
  const list = h("ul.stack");
  const rows = new Map();

  const prefer = async (id) => {
    await api.patch("/me/settings", { persona_id: id });
    standard = id;
    rows.forEach((row) => row.show());
  };

  const make = (item) => {
    const summary = h("summary.persona");
    const foot = h("div.row");
    const show = () => {
      const { id, name } = item;
      const is = id === standard;
      const label = t(is ? "library.standard_not" : "library.standard_make");
      const prefers = act(is ? "check" : "pin", label, () => prefer(is ? null : id));
      const erase = act("delete", t("common.delete"), () => personas.remove(id, name), "danger");
      fill(
        summary,
        face(item, { kind: "personas" }),
        h(
          "div.grow",
          {},
          h("h2.clip", { dir: "auto" }, name),
          h("p.soft.clip", { dir: "auto" }, item.description),
        ),
        is && h("span.tag", {}, t("library.standard")),
      );
      refill(foot, prefers, erase);
    };
    const open = ({ target }) => {
      if (!target.open || body.firstChild) return;
      const form = editing(personas, item, [{ fields: FIELDS }], signal, show);
      fill(body, portrait(personas, item, signal), h("div.stack", {}, form.element, foot));
    };
    const body = h("div.editor");
    show();
    return { show, element: h("li.card", {}, h("details", { ontoggle: open }, summary, body)) };
  };

  const draw = async () => {
    const all = (await personas.all()).map((item) => {
      if (!rows.has(item.id)) rows.set(item.id, make(item));
      return rows.get(item.id);
    });
    rows.forEach((row) => row.show());
    refill(list, all.length ? all.map((row) => row.element) : h("li.empty", {}, t("library.personas_none")));
  };
  const opened = async ({ id }) => {
    await draw();
    rows.get(id).element.firstChild.open = true;
  };
  const add = () => naming(personas, t("library.new_persona"), opened);
  addEventListener("personas-changed", draw, { signal });
  await draw();
  const create = act("plus", t("library.new_persona"), add, "primary");
  const head = h("header", {}, h("h1", {}, t("library.personas")), create);
  return h("div.page", {}, head, tabs("personas"), h("p.soft.lead", {}, t("library.personas_help")), list);
}
