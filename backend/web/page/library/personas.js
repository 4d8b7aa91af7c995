/** Personas: who the person is in a chat. */
import { api } from "../core/api.js";
import { attempt, dialog } from "../core/dialogs.js";
import { fill, h } from "../core/dom.js";
import { autoform } from "../core/form.js";
import { personas } from "../core/store.js";
import { t } from "../core/words.js";
import { face } from "./faces.js";
import { act, naming, portrait, refill, remove, saver, tabs } from "./parts.js";

const fields = () => [
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

  const prefer = (id) =>
    attempt(async () => {
      await api.patch("/me/settings", { persona_id: id });
      standard = id;
      rows.forEach((row) => row.show());
    });

  const make = (item) => {
    const summary = h("summary.persona");
    const foot = h("div.row");
    const show = () => {
      const { id, name } = item;
      const is = id === standard;
      const label = t(is ? "library.standard_not" : "library.standard_make");
      const prefers = act(is ? "check" : "pin", label, () => prefer(is ? null : id));
      const erase = act("delete", t("common.delete"), () => remove(personas, "/personas", item, name), "danger");
      fill(
        summary,
        face(item, { kind: "personas" }),
        h("div.grow", {}, h("h2.clip", {}, name), h("p.soft.clip", {}, item.description)),
        is && h("span.tag", {}, t("library.standard")),
      );
      refill(foot, prefers, erase);
    };
    const open = ({ target }) => {
      if (!target.open || body.firstChild) return;
      const save = saver("/personas", item, personas, signal, show);
      const form = autoform({ groups: [{ fields: fields() }], value: { ...item }, save, signal });
      fill(body, portrait("personas", item, personas, signal), form.element, foot);
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
    fill(list, all.length ? all.map((row) => row.element) : h("li.empty", {}, t("library.personas_none")));
  };
  const add = () =>
    dialog(t("library.new_persona"), (close) =>
      naming("/personas", personas, async ({ id }) => {
        close();
        await draw();
        rows.get(id).element.firstChild.open = true;
      }),
    );
  addEventListener("personas-changed", () => attempt(draw), { signal });
  await draw();
  const create = act("plus", t("library.new_persona"), add, "primary");
  const head = h("header", {}, h("h1", {}, t("library.personas")), create);
  return h("div.page", {}, head, tabs("personas"), h("p.soft.lead", {}, t("library.personas_help")), list);
}
