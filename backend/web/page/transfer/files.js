/** Import of any file: its upload, the progress of its job, and its end. */
import {
  act, api, attempt, campaigns, characters, chats, chronicles, combine, h, has, icon, lorebooks, personas,
  t,
} from "../core.js";
import { importing, track } from "../core/importing.js";
import { followJob } from "../core/jobs.js";

/** A text of imports. */
export const i = (name, values) => t(`imports.${name}`, values);

export const OUTCOMES = ["imported", "already_there", "skipped", "failed"];

/** Views of the imported items by their kind. Those of the second list have one view for all. */
const OWN_VIEW = { character: "characters", chat: "chats", lorebook: "lorebooks", preset: "presets", campaign: "campaigns", chronicle: "chronicles" };
const SHARED_VIEW = { persona: "personas", scripts: "scripts", provider: "providers", settings: "settings" };

/** The address of the item of a result, if it has one. */
export function addressOf({ kind, item_id: id }) {
  if (kind in SHARED_VIEW) return `#/${SHARED_VIEW[kind]}`;
  return id && kind in OWN_VIEW ? `#/${OWN_VIEW[kind]}/${id}` : null;
}

/** The number of files with each outcome in one line: "12 imported · 1 failed". */
export const summary = ({ counts }) =>
  OUTCOMES.filter((each) => counts[each]).map((each) => i(each, { count: counts[each] })).join(" · ");

const renew = () => {
  for (const each of [campaigns, characters, chats, chronicles, lorebooks, personas]) each.changed();
  dispatchEvent(new Event("imports-changed"));
};

/** Follow an import until its job ends. `show(share, text)` gets its progress. Returns the import. */
export async function followImport({ id, job_id: job }, signal, show) {
  await followJob(job, signal, ({ state, progress: { done, total } }) => {
    // The progress counts files.
    if (total > 1) show(done / total, i("progress", { done, total }));
    else show(null, has(`imports.job.${state}`) ? i(`job.${state}`) : "");
  });
  const item = await api.get(`/imports/${id}`, { signal });
  renew();
  return item;
}

export const stop = ({ job_id: job }) => attempt(() => api.post(`/jobs/${job}/stop`));
export const goOn = ({ id }) => api.post(`/imports/${id}/continue`);

/** Run the row of an import that the server has. */
const work = (item) => async ({ onprogress, signal, stopping, resume }) => {
  stopping(() => stop(item), work(item));
  return end(await followImport(item, signal, onprogress), resume);
};

/** The end of a row. An import of one file shows what it brought, others link to their results. */
async function end(item, resume) {
  const { id, name, state, counts } = item;
  const count = OUTCOMES.reduce((sum, each) => sum + counts[each], 0);
  if (count === 1 && !item.can_continue) {
    const [result] = (await api.get(`/imports/${id}/results`)).items;
    return single(result, name);
  }
  const again = () => resume(async (row) => work(await goOn(item))(row));
  const isWhole = state === "finished" && !counts.failed;
  return {
    text: [h("a", { href: `#/imports/${id}` }, name), h("small", combine([i(`states.${state}`), summary(item)], ": "))],
    sign: icon(isWhole ? "check" : "alert"),
    button: item.can_continue && act("continue", i("continue_named", { name }), again, "quiet"),
    state: isWhole ? "done" : { finished: "partial", stopped: "stopped" }[state] ?? "refused",
  };
}

async function single(result, name) {
  const { outcome, kind, item_id: id, detail, warnings } = result;
  if (kind === "character" && outcome === "imported") {
    const { arrival } = await import("../library/start.js");
    return arrival(await api.get(`/characters/${id}`), warnings);
  }
  const href = addressOf(result);
  const isThere = /imported|already_there/.test(outcome);
  const words = combine([i(`outcomes.${outcome}`), kind && i(`kinds.${kind}`)]);
  return {
    text: [
      href ? h("a", { href }, name) : h("p.clip", name),
      [isThere && words, detail, ...warnings].filter(Boolean).map((each) => h("small", each)),
    ],
    sign: icon(isThere ? "check" : "alert"),
    state: isThere ? "done" : "refused",
  };
}

/** Import of files of any kind, or of chats with the character `to`. */
export const files = importing({
  accept: "",
  drop: i("drop"),
  largest: Infinity,
  async send(file, row, to) {
    const path = to ? `/chats/import?character_ids=${to.id}` : "/imports";
    return work(await api.upload(path, file, row))(row);
  },
});

/** Show the imports that run on the server since an earlier visit. */
export async function takeUp() {
  const { items } = await api.get("/imports");
  for (const item of items) if (item.state === "running") track(item.name, work(item), true);
}
