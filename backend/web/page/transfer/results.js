/** One import: its progress, and the result of each file. */
import {
  act, api, attempt, combine, deleting, fill, h, has, icon, more, pause, progress, sendLater, size, t,
  timed,
} from "../core.js";
import { addressOf, followImport, goOn, i, OUTCOMES, stop } from "./files.js";

const SIGNS = { imported: "check", already_there: "minus", skipped: "minus", failed: "alert" };
const PAGE = 100;
const LOOK_MILLISECONDS = 3000;

/** What to do about a file that was not imported. */
function advice({ path, outcome, kind }) {
  if (outcome !== "failed") {
    return path.endsWith("secrets.json") && h("a", { href: "#/providers" }, i("advice.secrets"));
  }
  return i(`advice.${has(`imports.advice.${kind}`) ? kind : "other"}`);
}

/** A file with its outcome, and a link to the item. */
function line(result) {
  const { path, outcome, kind, detail, warnings } = result;
  const href = addressOf(result);
  const isThere = /imported|already_there/.test(outcome);
  const facts = combine([i(`outcomes.${outcome}`), kind && i(`kinds.${kind}`)]);
  return h("li", { class: outcome },
    icon(SIGNS[outcome]),
    h("div.grow",
      h("p.path", isThere && href ? h("a", { href }, path) : path),
      h("small.soft", facts),
      [detail, ...warnings].filter(Boolean).map((each) => h("small", each)),
      h("small.help", advice(result))));
}

/** Route: #/imports/ID */
export default async function ({ params: { id }, signal, title }) {
  let item = await api.get(`/imports/${id}`, { signal });
  title(item.name);
  const bar = progress(t("files.importing", item));
  const state = h("p.grow", { role: "status" });
  const acts = h("div.row");
  const list = h("ul.list.results", { label: i("results") });
  const none = h("p.empty", { hidden: true }, i("no_results"));
  const older = act("down", t("common.more"), () => attempt(() => load(older.value)));
  let outcome = null;
  let shown = null;

  const load = async (after) => {
    const query = { outcome, after, limit: PAGE };
    const page = await api.get(`/imports/${id}/results`, { query, signal });
    if (query.outcome !== outcome) return;
    if (!after) fill(list);
    const at = list.children.length;
    list.append(...page.items.map(line));
    none.hidden = list.children.length > 0;
    older.value = page.next ?? "";
    older.hidden = !page.next;
    // The button moves below the new lines.
    if (after) list.children[at]?.querySelector("a")?.focus();
  };

  const filters = [null, ...OUTCOMES].map((name) => {
    const press = () => {
      outcome = name;
      draw();
      attempt(load);
    };
    return { name, button: h("button.tag", { onclick: press }) };
  });
  const draw = () => {
    const total = OUTCOMES.reduce((sum, each) => sum + item.counts[each], 0);
    for (const { name, button } of filters) {
      const count = name ? item.counts[name] : total;
      button.textContent = i(name ?? "all", { count });
      button.hidden = name !== outcome && name && !count;
      button.ariaPressed = name === outcome;
    }
    if (shown === item.state) return;
    shown = item.state;
    const isRunning = shown === "running";
    const isLost = /stopped|failed/.test(item.state) && !item.can_continue;
    fill(state, i(`states.${item.state}`), isLost && [". ", i("lost")]);
    bar.element.hidden = !isRunning;
    fill(acts,
      isRunning && act("stop", i("stop"), () => stop(item)),
      item.can_continue && act("continue", i("continue"), () => attempt(resume), "primary"),
      !isRunning && more(t("common.more"), [deleting(remove)]));
  };

  const resume = async () => {
    item = await goOn(item);
    draw();
    await follow();
  };
  const remove = () => {
    sendLater(t("common.deleted", item), `/imports/${id}`);
    location.hash = "#/imports";
  };
  /** Show the first results while the import runs. */
  const watch = async () => {
    while (item.state === "running" && !signal.aborted) {
      await pause(LOOK_MILLISECONDS, signal);
      if (document.hidden || item.state !== "running") continue;
      const now = await api.get(`/imports/${id}`, { signal });
      if (item.state !== "running") return;
      item = now;
      draw();
      if (list.children.length < PAGE && !list.contains(document.activeElement)) await load();
    }
  };
  const follow = async () => {
    watch().catch(() => {});
    item = await followImport(item, signal, bar.show);
    draw();
    await load();
  };

  draw();
  await load();
  if (item.state === "running") attempt(follow);
  return h("div.page.narrow",
    h("a.row.back", { href: "#/imports" }, icon("left"), i("title")),
    h("header",
      h("div.grow", h("h1.clip", item.name),
        h("small.soft", item.size > 0 && `${size(item.size)} · `, timed(item.created_at))),
      acts),
    h("div.row", state), bar.element,
    h("div.row.tags", { role: "group", label: i("filter") }, filters.map(({ button }) => button)),
    list, none, older);
}
