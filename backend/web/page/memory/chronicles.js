/** The list of chronicles. */
import { act, chronicles, fill, h, icon, more, on, t } from "../core.js";
import { acts, areas, files, m, make, titles } from "./parts.js";

async function create() {
  const made = await make();
  if (made) location.hash = `#/chronicles/${made.id}`;
}

export default async function list({ signal, title }) {
  title(m("chronicles"));
  const out = h("div");
  const show = async () => {
    const [items, names] = await Promise.all([chronicles.all(), titles()]);
    fill(out, items.length
      ? h("ul.list", items.map((it) => row(it, names)))
      : h("div.empty", icon("memory"), h("p", m("none"))));
  };
  // The agent may have changed the chronicles.
  chronicles.drop();
  on(window, "chronicles-changed", show, signal);
  await show();
  return h("div.page",
    h("header",
      h("h1", m("memory")),
      h("div.row",
        act("upload", t("common.import"), () => files.choose()),
        act("plus", m("make"), create, "primary"))),
    areas("chronicles"),
    out);
}

function row(it, names) {
  const count = it.current_count;
  const aside = it.event_count - count;
  return h("li",
    h("div.grow",
      h("h2", h("a.plain", { href: `#/chronicles/${it.id}` }, it.name)),
      h("p.clip.soft", it.description),
      h("p.row.soft",
        h("span", m("events", { count }), aside > 0 && `, ${m("aside", { aside })}`),
        it.chat_ids.map((id) =>
          h("a.tag.plain", { href: `#/chats/${id}` }, icon("chat"), h("span.clip", names.get(id)))))),
    more(m("acts", it), acts(it)));
}
