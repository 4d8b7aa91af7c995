/** Prompt presets: list, import, export. */
import {
  act, api, attempt, complain, deleting, download, fill, h, isPending, more, on, sendLater, t,
  toast,
} from "../core.js";
import { areas } from "../account/parts.js";
import { pick } from "../core/importing.js";

const say = (name, values) => t(`presets.${name}`, values);

/** Route: #/presets */
export default async function ({ signal, title }) {
  title(say("title"));
  const rows = h("ul.list");
  const empty = h("p.soft", say("empty"));
  const open = (id) => (location.hash = `#/presets/${id}`);
  let items = [];
  const draw = () => {
    const shown = items.filter(({ id }) => !isPending(`/presets/${id}`));
    fill(rows, shown.map(row));
    empty.hidden = shown.length > 0;
  };
  const read = async () => {
    items = await api.all("/presets", { signal });
    draw();
  };
  const make = () => attempt(async () => open((await api.post("/presets", { name: say("fresh") })).id));
  const copy = ({ id, name }) => attempt(async () => {
    const { blocks, sampling, squash_system_messages, lore_placement } = await api.get(`/presets/${id}`);
    const parts = { blocks, sampling, squash_system_messages, lore_placement };
    await api.post("/presets", { name: say("copied", { name }).slice(0, 300), ...parts });
    await read();
  });
  const bring = async (files) => {
    for (const file of files) {
      await attempt(async () => {
        const { warnings } = await api.upload("/presets/import", file, { signal });
        toast([say("imported", { name: file.name }), ...warnings].join(" "));
      });
    }
    await read().catch(complain);
  };
  const remove = ({ id, name, revision: ifMatch }) => sendLater(say("deleted", { name }), `/presets/${id}`, { ifMatch });
  const row = (item) =>
    h("li",
      h("a.grow.clip", { href: `#/presets/${item.id}` }, item.name),
      more(say("more", { name: item.name }), [
        { label: say("copy"), icon: "copy", act: () => copy(item) },
        { label: say("export"), icon: "download", act: () => download(`/presets/${item.id}/export`) },
        deleting(() => remove(item)),
      ]));
  on(window, "pending", draw, signal);
  await read();
  return h("div.page",
    h("header", h("h1", say("title")), h("div.row",
      act("upload", say("import"), () => pick(".json,application/json", bring, true)),
      act("plus", say("add"), make, "primary"))),
    areas("presets"),
    h("p.soft.lead", say("about")),
    rows, empty);
}
