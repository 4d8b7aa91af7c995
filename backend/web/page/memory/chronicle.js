/** A chronicle: its timeline, the agent's runs, and rebuilds. */
import { act, api, fill, h, icon, more, on } from "../core.js";
import { acts, files, m, tabs } from "./parts.js";
import { rebuild, strip } from "./rebuild.js";
import { runs } from "./runs.js";
import { timeline } from "./timeline.js";
import { follow, isBusy, standing } from "./watch.js";

export default async function chronicle({ params, query, signal, title }) {
  const path = `/chronicles/${params.id}`;
  const it = await api.get(path, { signal });
  title(it.name);
  const here = query.get("tab") ?? "timeline";
  const line = here === "timeline" && (await timeline(it, query, signal));
  const reload = () => signal.aborted || dispatchEvent(new Event("hashchange"));
  const rebuilt = strip(it, signal, () => (line ? line.refresh() : reload()));
  const again = async () => {
    const job = await rebuild(it);
    if (job) rebuilt.watch(job);
  };
  const menu = more(m("acts", it), [
    { label: m("rebuild"), icon: "spark", act: again },
    ...acts(it, reload, () => (location.hash = "#/chronicles")),
  ]);

  // Progress of background work is shown automatically.
  const live = h("p.soft", { role: "status" });
  let looking;
  const look = async () => {
    if (looking || document.hidden) return;
    looking = true;
    await Promise.all(it.chat_ids.map((id) =>
      follow(id, signal, (view) => fill(live, isBusy(view) && standing(view)))));
    looking = false;
    if (!signal.aborted) line.refresh();
  };
  if (line) {
    look();
    on(document, "visibilitychange", look, signal);
  }

  const view = h("div.page",
    h("a.row.back", { href: "#/chronicles" }, icon("left"), m("chronicles")),
    h("header",
      h("h1", it.name),
      h("div.row", line && act("plus", m("add"), line.add, "primary"), menu)),
    it.description && h("p.about.soft", it.description),
    rebuilt.element,
    tabs(here, ["timeline", `#${path}`], ["runs", `#${path}?tab=runs`]),
    live,
    line ? line.element : await runs(it, signal));
  files.at(signal, { ...it, then: reload });
  return view;
}
