/** Statistics of a campaign's memory: figures, charts, and failures. */
import { row as jobRow } from "../activity.js";
import { api, date, dateTime, fill, h, has, icon, money, number, svg, t, timed } from "../core.js";
import { c } from "./parts.js";

const m = (path, values) => c(`measures.${path}`, values);
const kind = (name) => t(`memory.run.${name}`);
const seconds = (value) => (value == null ? m("none") : m("seconds", { seconds: Math.round(value * 10) / 10 }));

export default async function panel(it, { signal }) {
  const page = h("section.measures");
  const read = async () => fill(page, view(await api.get(`/campaigns/${it.id}/memory`, { signal }), read));
  await read();
  return page;
}

function view(memory, read) {
  const { conflicts: { open, accepted, refused }, prompts, days, work, models, problems } = memory;
  const proposed = open + accepted + refused;
  const share = memory.whole_tokens > 0 ? Math.round((memory.saved_tokens / memory.whole_tokens) * 100) : 0;
  const saved = memory.replies > 0 && m("saved_note", { count: memory.replies, share });
  return [
    h("p.soft", m("help")),
    h("dl.tiles",
      tile("saved", memory.saved_tokens, saved),
      tile("compactions", memory.compactions),
      tile("failures", memory.failures),
      tile("conflicts", proposed, proposed > 0 && m("conflicts_note", { open, accepted, refused })),
      tile("calls", memory.calls, t("common.tokens", { count: memory.tokens })),
      tile("cost", paid(memory.cost), m("cost_note"))),
    h("h2", m("prompts")),
    prompts.length
      ? chart("prompts", prompts.map((each) => [dateTime(each.at), each.whole_tokens, each.sent_tokens]), ["whole", "sent"])
      : h("p.empty", m("no_prompts")),
    work.length > 0 && [
      h("h2", m("days")),
      chart("days", days.map((each) => [date(each.day), each.prompt_tokens + each.completion_tokens, each.calls, each.failures]),
        ["tokens", "calls", "failures"], 1),
      h("h2", m("work")),
      table(m("work"), ["kind", "runs", "failures", "calls", "tokens", "p50", "p95"], work.map((each) => [
        kind(each.kind), each.runs, each.failures, each.calls, each.prompt_tokens + each.completion_tokens,
        seconds(each.seconds_p50), seconds(each.seconds_p95)])),
      h("h2", m("models")),
      table(m("models"), ["model", "calls", "read", "written", "cost"], models.map((each) =>
        [each.model, each.calls, each.prompt_tokens, each.completion_tokens, paid(each.cost)]))],
    problems.length > 0 && [
      h("h2", m("problems")),
      h("ul.list", { label: m("problems") }, problems.map((each) => problem(each, read)))],
  ];
}

const paid = (value) => (value == null ? m("none") : money(value));

const tile = (name, value, note) =>
  h("div.card", h("dt", m(name)), h("dd", h("strong", typeof value === "number" ? number(value) : value), note && h("small.soft", note)));

/**
 * A bar chart over time of the first `shown` columns, with all columns as a table.
 *
 * @param {Array} rows `[label, …values]` of each point, oldest first.
 */
function chart(name, rows, columns, shown = columns.length) {
  const most = Math.max(1, ...rows.flatMap((each) => each.slice(1, shown + 1)));
  const bar = (value, at, place) => {
    const width = 0.8 - 0.4 * place;
    const height = (Math.max(0, value) / most) * 100;
    return svg("rect", { class: columns[place], x: at + (1 - width) / 2, y: 100 - height, width, height });
  };
  const drawing = svg("svg", { viewBox: `0 0 ${Math.max(rows.length, 10)} 100`, preserveAspectRatio: "none", role: "img",
    label: m(`${name}_said`, { count: rows.length, most }) },
    rows.map(([, ...values], at) => values.slice(0, shown).map((value, place) => bar(value, at, place))));
  return h("figure",
    drawing,
    h("figcaption.row",
      h("span.soft.grow", m("most", { most })),
      columns.slice(0, shown).map((each) => h("span.row", h("i", { class: each }), m(each)))),
    h("details", h("summary", m("as_table")), table(m(name), ["when", ...columns], rows)));
}

const cell = (tag, value) => (typeof value === "number" ? h(`${tag}.number`, number(value)) : h(tag, value));

/** A table that scrolls horizontally. The first cell of each row is its heading. */
const table = (label, columns, rows) =>
  h("div.wide", { tabindex: 0, role: "region", label }, h("table",
    h("thead", h("tr", columns.map((name) => h("th", { scope: "col" }, m(name))))),
    h("tbody", rows.map(([first, ...values]) =>
      h("tr", h("th", { scope: "row" }, first), values.map((value) => cell("td", value)))))));

/** A failure with advice, and its job if it can be retried. */
function problem({ kind: what, error, chat_id: chat, created_at: when, job }, read) {
  const advice = has(`campaign.measures.advice.${error}`) ? m(`advice.${error}`) : m("advice.other");
  return h("li",
    icon(job ? "alert" : "check"),
    h("div.grow",
      h("a", { href: `#/chats/${chat}` }, kind(what)), ": ", error.replaceAll("-", " "),
      h("small.soft", timed(when), ". ", job ? advice : m("settled")),
      job && h("ul.list", jobRow(job, read))));
}
