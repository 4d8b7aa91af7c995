/** One chronicle: its timeline, what the agent did for it, and having it written anew. */
import { api } from "../core/api.js";
import { menu } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { acts, m, tabs } from "./parts.js";
import { rebuild, runs, strip } from "./runs.js";
import { timeline } from "./timeline.js";
import { follow, isBusy, standing } from "./watch.js";

export default async function chronicle({ params, query, signal, title }) {
  const path = `/chronicles/${params.id}`;
  const it = await api.get(path, { signal });
  title(it.name);
  const here = query.get("tab") ?? "timeline";
  const line = here === "timeline" && (await timeline(it, query, signal));
  const reload = () => dispatchEvent(new Event("hashchange"));
  const rebuilt = strip(signal, reload);
  const again = async () => {
    const job = await rebuild(it);
    if (job) rebuilt.watch(job);
  };
  const items = [
    line && { label: m("choose"), icon: "merge", act: line.choosing },
    { label: m("rebuild"), icon: "spark", act: again },
    ...acts(it, reload, () => (location.hash = "#/chronicles")),
  ].filter(Boolean);
  const more = h("button", { "aria-label": m("acts", it), onclick: () => menu(more, items) }, icon("more"));

  // What goes on behind the replies appears by itself.
  const live = h("p.soft", { role: "status" });
  const last = new Map();
  const watch = (id) => follow(id, signal, async (view) => {
    fill(live, isBusy(view) && standing(view));
    const newest = view.items[0]?.id ?? "";
    const before = last.get(id) ?? newest;
    last.set(id, newest);
    const made = view.items.filter((run) => run.id > before).flatMap((run) => run.written);
    const events = made.filter(({ what, container_id: home }) => home === it.id && /^event_c/.test(what));
    for (const { id: event } of events) line.put(await api.get(`${path}/events/${event}`, { signal }));
    if (events.length) fill(live, m("wrote", { count: events.length }));
  });
  let looking;
  const look = async () => {
    if (looking || document.hidden) return;
    looking = true;
    await Promise.all(it.chat_ids.map(watch));
    looking = false;
  };
  if (line) {
    look();
    document.addEventListener("visibilitychange", look, { signal });
  }
  api.get("/jobs", { signal }).then(async ({ items }) => {
    if (!items.some((job) => /rebuild/.test(job.kind) && job.state !== "done")) return;
    const job = await api.get(`${path}/rebuild`, { signal });
    if (!/done|dead/.test(job.state)) rebuilt.watch(job);
  }).catch(() => {});

  return h("div.page", {},
    h("header", {},
      h("h1", {}, it.name),
      h("div.row", {}, line && h("button.primary", { onclick: line.add }, icon("plus"), m("add")), more)),
    h("p.soft", {}, it.description),
    rebuilt.element,
    tabs(here, ["timeline", `#${path}`], ["runs", `#${path}?tab=runs`]),
    live,
    line ? line.element : await runs(it, signal));
}
