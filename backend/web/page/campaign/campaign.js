/** A campaign: its sessions, world, history and settings. */
import { choose } from "../chat/choose.js";
import { act, api, fill, h, icon, more, number, tabs } from "../core.js";
import { acts, c, moment } from "./parts.js";
import { waiting } from "./proposals.js";

const TABS = {
  sessions: () => import("./sessions.js"),
  world: () => import("./tab.js"),
  proposals: () => import("./proposals.js"),
  glossary: () => import("./glossary.js"),
  ledger: () => import("./ledger.js"),
  versions: () => import("./versions.js"),
  measures: () => import("./measures.js"),
  settings: () => import("./settings.js"),
};

/** Route: #/campaigns/ID. `?tab=` chooses the tab. */
export default async function ({ params: { id }, query, signal, title }) {
  const path = `#/campaigns/${id}`;
  const it = await api.get(`/campaigns/${id}`, { signal });
  const asked = query.get("tab");
  const here = asked in TABS ? asked : "sessions";
  const heading = h("h1");
  const when = h("p.soft");
  /** Show the campaign's name and the day of its story. */
  const tell = () => {
    title((heading.textContent = it.name));
    fill(when, moment(it));
  };
  tell();
  const [{ default: build }, count] = await Promise.all([TABS[here](), waiting(`/campaigns/${id}`, signal)]);
  const content = await build(it, { signal, query, tell });
  const badge = count > 0 && h("span.tag.badge", number(count));
  const named = (name) => (name === "proposals" ? h("span", c("tabs.proposals"), " ", badge) : c(`tabs.${name}`));
  const places = Object.keys(TABS).map((name) => [name, named(name), `${path}?tab=${name}`]);
  return h("div.page.campaign",
    h("a.row.back", { href: "#/campaigns" }, icon("left"), c("campaigns")),
    h("header",
      h("div.grow", heading, when),
      act("plus", c("open_chat"), () => choose(id), "primary"),
      more(c("acts", it), acts(it, () => (location.hash = "#/campaigns")))),
    tabs(c("parts"), here, places),
    content);
}
