/** The agent's runs for the chats of a chronicle. */
import { act, api, attempt, fill, h, t, timed, told } from "../core.js";
import { m, titles } from "./parts.js";
import { follow, isBusy, pendRun, standing, undo, written } from "./watch.js";

/** One section per chat with its runs, newest first. */
export async function runs({ chat_ids: ids }, signal) {
  const names = await titles();
  if (!ids.length) return h("p.empty", m("no_chats"));
  return h("div", await Promise.all(ids.map((id) => section(id, names.get(id), signal))));
}

async function section(id, title, signal) {
  const state = h("p", { role: "status" });
  const list = h("ol.deeds", { label: title });
  const more = h("button", { onclick: () => attempt(() => load(more.value)) }, t("common.more"));
  const say = (view) =>
    fill(state, standing(view, load), h("span.soft", " ", m("today", view)));
  const load = async (after) => {
    const view = await api.get(`/chats/${id}/enrichment`, { query: { after }, signal });
    say(view);
    if (!after) fill(list);
    list.append(...view.items.map((run) => card(run, id, load)));
    if (!list.firstChild) list.append(h("li.empty", m("no_runs")));
    more.value = view.next ?? "";
    more.hidden = !view.next;
    return view;
  };
  if (isBusy(await load())) follow(id, signal, (view) => (isBusy(view) ? say(view) : attempt(load)));
  return h("section", h("h2", h("a.plain", { href: `#/chats/${id}` }, title)), state, list, more);
}

function card(run, chat, changed) {
  const { from_position: from, to_position: to, written: wrote } = run;
  const isQuiet = run.kind === "glossary" ? !run.significant : !wrote.length && run.kind !== "summary";
  const state = run.state === "done" && isQuiet ? "quiet" : run.state;
  const took = {
    ...run,
    count: run.calls,
    tokens: run.prompt_tokens + run.completion_tokens,
    seconds: Math.round(run.duration_ms / 100) / 10,
  };
  return h("li", { class: state },
    h("header.row",
      h("h3", m(`run.${run.kind}`)),
      h("span.tag", m(`run_state.${state}`)),
      h("span.soft.grow",
        h("a", { href: `#/chats/${chat}?at=${from}` }, m("lines", { from: from + 1, to: to + 1 })), ", ",
        timed(run.created_at)),
      run.can_undo && pendRun(act("undo", t("common.undo"), () => undo(run.id, changed)), run.id)),
    run.error && h("div.trouble", run.problem ? told(run.problem) : run.error.replaceAll("-", " ")),
    h("ul", wrote.map((it) => h("li",
      h("span.tag", m(`effect.${it.what}`)), " ",
      state === "undone" ? it.title : written(it),
      it.because !== run.why && h("span.soft", " ", it.because)))),
    run.kind === "glossary" && h("p", run.kinds.map((tag) => h("span.tag", m(`tag.${tag}`)))),
    h("details.soft",
      h("summary", m("details")),
      h("p", run.why),
      run.refused.map(({ reason }) => h("p", m("refused", { reason }))),
      h("p", m("took", took), " ", run.note)));
}
