/** Embedding models that an administrator can download, with their progress and use. */
import { row } from "../activity.js";
import { api, attempt, fill, h, number, pause, size, texts } from "../core.js";
import { m } from "./parts.js";

const w = (path, values) => m(`models.${path}`, values);
const tongue = new Intl.DisplayNames(texts.language, { type: "language" });
const isUnderWay = ({ job }) => job && !/done|dead/.test(job.state);

/** The section. `changed()` is called after a change of the model in use. */
export function models(signal, changed) {
  const out = h("div.stack");
  let before, busy, watching;
  const read = async () => {
    const view = await api.get("/admin/embedding-models", { signal });
    const now = JSON.stringify(view);
    if (now !== before) fill(out, shown(view));
    if (before && now !== before) changed();
    before = now;
    busy = view.models.some(isUnderWay);
  };
  const fetched = (name) => attempt(async () => {
    await api.post("/admin/embedding-models/fetch", { name });
    await read();
    watch();
  });
  const line = (model) => {
    const { name, state, job, languages } = model;
    const label = w(state === "fetched" ? "use" : "fetch");
    const act = () =>
      h("button", { label: `${label}: ${name}`, disabled: isUnderWay(model), onclick: () => fetched(name) }, label);
    const told = { ...model, size: size(model.size), speed: number(model.lines_per_second), count: languages.length };
    const names = languages.map((each) => tongue.of(each)).join(", ");
    const known = languages.length > 1
      ? h("details", h("summary", w("languages", told)), names)
      : [w("languages", told), " ", names];
    return [
      h("li",
        h("div.grow", h("div", name, model.is_recommended && [" ", h("span.tag", w("recommended"))]),
          h("small.help", w("about", told)), h("small.help", known)),
        state === "in_use" ? h("span.soft", w("in_use")) : act()),
      (isUnderWay(model) || (job?.error && state === "on_offer")) && row(job, read),
    ];
  };
  const shown = ({ models: all, embedder, is_used: isUsed }) => [
    !isUsed && h("p.help", w("unused", { embedder })),
    h("ul.list", { label: w("title") }, all.map(line)),
  ];
  const watch = async () => {
    if (watching) return;
    watching = true;
    while (busy && !signal.aborted) {
      await pause(1000, signal);
      if (!document.hidden) await read().catch(() => {});
    }
    watching = false;
  };
  attempt(read).then(watch);
  return h("section.stack", h("h2", w("title")), h("p.help", w("help")), out);
}
