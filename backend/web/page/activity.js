/** Background jobs and the state of the server. */
import {
  ago, api, attempt, combine, dateTime, fill, h, has, icon, kept, labels, progress, remedy, t,
} from "./core.js";
import { poll } from "./core/jobs.js";

/** The text for a name, or the name itself in words. */
const said = (name, values) =>
  has(`activity.${name}`) ? t(`activity.${name}`, values) : name.split(".").at(-1).replaceAll("-", " ");

/** The task in the settings that chooses the model for a kind of job, and the task for its JSON. */
const TASKS = { summary: "summary", scene: "summary", chapter: "summary", compaction: "compaction" };
const JSON_TASKS = { turn: "triage", rebuild: "triage" };
function task(kind, error) {
  const name = (error === "model-writes-no-json" && JSON_TASKS[kind]) || TASKS[kind] || "agent";
  return labels(t(`models.tasks.${name}`)).label;
}

/** A job in a list with its actions. `read()` is called after an action. */
export function row(job, read) {
  const { state, error, progress: { done, total } } = job;
  const kind = job.kind.split(".").at(-1);
  const name = said(`kinds.${kind}`);
  const bar = progress(name);
  bar.show(total ? done / total : null);
  const act = (what) => {
    const label = t(`activity.${what}`);
    const onclick = () => attempt(async () => (await api.post(`/jobs/${job.id}/${what}`), read()));
    return h("button", { label: `${label}: ${name}`, onclick }, label);
  };
  const how = { queued: error && "delayed", done: error && "ended" }[state] || state;
  const words = t(`activity.${how}`, { reason: error && said(error, { task: task(kind, error) }), when: dateTime(job.run_after) });
  return h("li",
    h("div.grow", name,
      h("small", { class: state === "dead" ? "fault" : "help" }, `${words} · ${ago(job.created_at)}`),
      state === "running" && bar.element),
    error && remedy({ slug: error }),
    /dead|waiting/.test(state) && act("retry"),
    /^enrichment\.|^transfer\.|fetch/.test(job.kind) && !/dead|done/.test(state) && act("stop"));
}

/** A model that the settings or recent chats of the account use, and its uses. */
function inUse({ id, title, provider_name: provider, uses, chats }) {
  const names = uses.map((each) => labels(t(each === "reply" ? "activity.replies" : `models.tasks.${each}`)).label);
  const facts = combine([provider, ...names, chats > 0 && t("activity.chats", { count: chats })]);
  return h("li", { class: title ? "" : "fault" },
    icon(title ? "check" : "alert"),
    h("div.grow", title ?? id,
      h("small.help", title ? facts : [t("activity.gone"), facts].join(" · ")),
      (!title || id === "demo") && h("small.help", h("a", { href: "#/providers" }, t("activity.add_model")))));
}

export default async function ({ signal, title }) {
  title(t("shell.activity"));
  const [list, health, place] = [h("ul.list"), h("ul.list"), h("section")];
  const models = h("ul.list", { label: t("activity.models") });
  let before;
  const read = async () => {
    const { items } = await api.get("/jobs", { signal });
    kept.set("seen", items[0]?.id);
    const now = JSON.stringify(items);
    if (now !== before) {
      fill(list, items.map((job) => row(job, read)));
      fill(place, items.length ? list : h("p.empty", t("activity.none")));
    }
    before = now;
    return /"(running|queued)"/.test(now);
  };
  poll(read, signal, await read());
  attempt(async () => fill(models, (await api.all("/models/in-use", { signal })).map(inUse)));
  attempt(async () => {
    const { parts } = await (await fetch("/ready", { signal })).json();
    // The settings' default models are not the models that this account uses.
    fill(health, parts.filter(({ name }) => name !== "models").map(({ name, ready, detail }) => h("li", { class: ready ? "" : "fault" },
      icon(ready ? "check" : "alert"),
      h("div.grow", said(`parts.${name}`), h("small.help", detail),
        detail.startsWith("none") && h("small.help", t(`activity.hints.${name}`))))));
  });
  return h("div.page.narrow",
    h("header", h("h1", t("shell.activity"))),
    place,
    h("section", h("h2", t("activity.models")), models),
    h("section", h("h2", t("activity.health")), health));
}
