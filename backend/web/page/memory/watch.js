/** The agent's work for a chat: state, progress, and undo. */
import { api, attempt, fill, h, icon, on, pause, pend, sendLater, t, toast, UNDO_SECONDS } from "../core.js";
import { m, signals } from "./parts.js";

/** True if a job is queued or running. */
export const isBusy = ({ job }) => job && job.state !== "dead";

/** The state of the work in one line. `again` is called after a retry. */
export function standing({ enabled, job, pending: count, tokens_today, tokens_per_day }, again) {
  if (!enabled) return m("off");
  if (tokens_today >= tokens_per_day) return m("limit");
  if (job?.state !== "dead") return m(job ? "reading" : count ? "unread" : "read", { count });
  const retry = () => attempt(async () => (await api.post(`/jobs/${job.id}/retry`), again()));
  return [m("stuck", { count }), " ", h("button", { onclick: retry }, t("common.retry"))];
}

/** Poll the state while a job runs and the page is visible. */
export async function follow(id, signal, show) {
  for (let wait = 2000; !signal.aborted; wait = Math.min(wait * 1.1, 20_000)) {
    // Errors are ignored, because the next request may succeed.
    const view = !document.hidden && (await api.get(`/chats/${id}/enrichment`, { signal }).catch(() => null));
    if (view && !signal.aborted) show(view);
    if (view && !isBusy(view)) return;
    await pause(wait, signal);
  }
}

/** A link to an item that a run has written. */
export function written({ what, id, container_id: home, title }) {
  if (/removed|summary/.test(what)) return title;
  const way = what.startsWith("event") ? `chronicles/${home}?event` : `lorebooks/${home}?entry`;
  return h("a", { href: `#/${way}=${id}` }, title);
}

const undoing = (id) => `/enrichment/runs/${id}/undo`;

/** Hide the element of a run, or stop its button, while the run is being undone. Returns the element. */
export const pendRun = (element, id) => pend(element, undoing(id), "POST");

/**
 * Undo a run, unless the user takes this back. `done()` is called afterwards.
 * Items that could not be undone are shown, with an option to force it.
 */
export const undo = (id, done, force) => sendLater(m(force ? "force_text" : "undo_text"), undoing(id), {
  method: "POST",
  query: { force },
  async then({ kept }) {
    const words = kept.map(({ title, reason }) => m(`kept.${reason}`, { title })).join(" ");
    const onaction = () => undo(id, done, true);
    if (words && !force) toast(words, { action: m("force"), seconds: UNDO_SECONDS, onaction });
    await done();
  },
});

/** A line in the chat about the agent's work after each turn. Hidden if the agent is off. */
export function chronicleWatch({ chat, events, signal }) {
  const element = h("div.watch", { role: "status", hidden: true });
  let newest;
  const next = signals(signal);
  const look = () => follow(chat.id, next(), show);
  const show = (view) => {
    newest ??= view.items[0]?.id ?? "";
    const made = view.items.filter((run) => run.id > newest && run.can_undo && run.kind === "turn");
    const line = h("div", !view.job && made.length ? made.map(wrote) : standing(view, look));
    element.hidden = !view.enabled;
    // Screen readers must not read the same text twice.
    if (line.textContent !== element.textContent) fill(element, line);
    if (!view.job) newest = view.items[0]?.id ?? "";
  };
  const wrote = ({ id, written: all }) =>
    pendRun(h("p", icon("spark"),
      h("span.grow", t("chat.wrote"), all.map((it) => [" ", written(it)])),
      h("button.quiet", { onclick: () => undo(id, look) }, t("common.undo"))), id);
  on(window, "chronicles-changed", look, signal);
  on(events, "turn", look, signal);
  look();
  return element;
}
