/** All chronicles: who uses them, making them, files. */
import { menu } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { chronicles } from "../core/store.js";
import { t } from "../core/words.js";
import { acts, areas, importing, m, make, titles } from "./parts.js";

const open = (id) => id && (location.hash = `#/chronicles/${id}`);

export default async function list({ signal, title }) {
  title(m("chronicles"));
  const out = h("div");
  const show = async () => {
    const [items, names] = await Promise.all([chronicles.all(), titles()]);
    fill(out, items.length
      ? h("ul.list", {}, items.map((it) => row(it, names)))
      : h("div.empty", {}, icon("memory"), h("p", {}, m("none"))));
  };
  // The agent writes while nobody looks.
  chronicles.drop();
  addEventListener("chronicles-changed", show, { signal });
  await show();
  const load = async () => open((await importing("/chronicles/import"))?.chronicle_id);
  return h("div.page", {},
    h("header", {},
      h("h1", {}, m("memory")),
      h("div.row", {},
        h("button", { onclick: load }, icon("upload"), t("common.import")),
        h("button.primary", { onclick: async () => open((await make())?.id) }, icon("plus"), m("make")))),
    areas("chronicles"),
    out);
}

function row(it, names) {
  // Who changes them tells this list as well.
  const still = () => {};
  const more = h("button.quiet", { "aria-label": m("acts", it) }, icon("more"));
  more.onclick = () => menu(more, acts(it, still, still));
  const count = it.current_count;
  const aside = it.event_count - count;
  return h("li", {},
    h("div.grow", {},
      h("h2", {}, h("a.plain", { href: `#/chronicles/${it.id}` }, it.name)),
      h("p.clip.soft", {}, it.description),
      h("p.row.soft", {},
        h("span", {}, m("events", { count }), aside > 0 && `, ${m("aside", { aside })}`),
        it.chat_ids.map((id) => h("a.tag.plain", { href: `#/chats/${id}` }, icon("chat"), names.get(id))))),
    more);
}
