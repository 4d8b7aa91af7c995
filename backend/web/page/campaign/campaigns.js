/** The list of campaigns. */
import { areas } from "../chat/list.js";
import { act, campaigns, fill, h, icon, more, on, t } from "../core.js";
import { exampleCampaign } from "../library/examples.js";
import { titles } from "../memory/parts.js";
import { acts, c, files, make, moment } from "./parts.js";

const SHOWN = 4;

/** Route: #/campaigns */
export default async function view({ signal, title }) {
  title(c("campaigns"));
  const out = h("div");
  const draw = async () => {
    const [items, names] = await Promise.all([campaigns.all(), titles()]);
    fill(out, items.length
      ? h("ul.list", { label: c("campaigns") }, items.map((it) => row(it, names)))
      : h("div.empty", icon("world"), h("p", c("none")), exampleCampaign()));
  };
  // Turns change the campaigns, so they are read again.
  campaigns.drop();
  on(window, "campaigns-changed", draw, signal);
  await draw();
  return h("div.page",
    h("header",
      h("h1", c("campaigns")),
      h("div.row",
        act("upload", t("common.import"), () => files.choose()),
        act("plus", c("make"), make, "primary"))),
    areas("campaigns"),
    out);
}

function row(it, names) {
  const newest = it.chat_ids.toReversed().slice(0, SHOWN);
  return h("li",
    h("div.grow",
      h("h2", h("a.plain", { href: `#/campaigns/${it.id}` }, it.name)),
      it.brief.setting && h("p.clip.soft", it.brief.setting),
      h("p.row.soft",
        h("span", `${moment(it)} · ${c("sessions_count", { count: it.chat_ids.length })}`),
        newest.map((id) =>
          h("a.tag.plain", { href: `#/chats/${id}` }, icon("chat"), h("span.clip", names.get(id)))))),
    more(c("acts", it), acts(it)));
}
