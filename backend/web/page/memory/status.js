/** Memory status: the model, indexed and waiting texts, problems, and a rebuild. */
import { row } from "../activity.js";
import { ago, api, combine, fill, h, has, icon, number, pend, sendLater, session } from "../core.js";
import { poll } from "../core/jobs.js";
import { models } from "./models.js";
import { areas, m } from "./parts.js";

const s = (path, values) => m(`status.${path}`, values);
const section = (name, ...content) => h("section.stack", h("h2", s(name)), content);

const REBUILD = "/memory/rebuild";
const isRebuild = ({ kind, state }) => kind.endsWith("reindex") && !/done|dead/.test(state);

const counted = ({ kind, total, waiting: count }) =>
  h("li",
    h("div.grow", m(`places.${kind}`), count > 0 && h("small.help", s("waiting", { count }))),
    h("span.figure", number(total)));

/** A problem with advice. The server's text is used if the page has none. */
const problem = ({ kind, advice, count }) =>
  h("li", { class: kind === "no_model" ? "" : "fault" }, icon("alert"),
    h("div.grow", has(`memory.status.problems.${kind}`) ? s(`problems.${kind}`, { count }) : advice));

function shown({ model, indexed, points, move, compared_at: at, jobs, problems }, read) {
  const from = move?.source ? "moving" : "building";
  return [
    section("search",
      h("p", model ? s("model", model) : s("words")),
      move && h("p", { role: "status" }, s(from, move)),
      problems.length > 0 && h("ul.list", { label: s("wrong") }, problems.map(problem))),
    section("indexed",
      h("ul.list", indexed.map(counted)),
      h("p.help", combine([
        points != null && s("points", { count: points }),
        at ? s("compared", { when: ago(at) }) : s("never"),
      ], " "))),
    jobs.length > 0 && section("jobs", h("ul.list", jobs.map((job) => row(job, read)))),
  ];
}

export default async function status({ signal, title }) {
  title(s("title"));
  const out = h("div.stack");
  let before;
  const read = async () => {
    const view = await api.get("/memory", { signal });
    const now = JSON.stringify(view);
    if (now !== before) fill(out, shown(view, read));
    before = now;
    begin.disabled = view.jobs.some(isRebuild);
    return view.jobs.some(({ state }) => /running|queued/.test(state));
  };
  const rebuild = () => sendLater(s("rebuilds"), REBUILD, { method: "POST", then: read });
  const begin = pend(h("button", { onclick: rebuild }, s("rebuild")), REBUILD, "POST");
  poll(read, signal, await read());
  return h("div.page.index",
    h("header", h("h1", m("memory"))), areas("state"),
    out,
    session.user.is_administrator && models(signal, read),
    section("again", h("p.help", s("rebuild_help")), h("div", begin)));
}
