/** What the agent did for the chats of a chronicle, and having it done anew. */
import { api, events, send } from "../core/api.js";
import { attempt, dialog, sure, toast } from "../core/dialogs.js";
import { fill, h, icon, pause } from "../core/dom.js";
import { progress, sendform } from "../core/form.js";
import { ago, dateTime, has, number, t } from "../core/words.js";
import { m, titles } from "./parts.js";
import { follow, isBusy, standing, undo, written } from "./watch.js";

/** A section for each chat, with its runs, newest first. */
export async function runs({ chat_ids: ids }, signal) {
  const names = await titles();
  if (!ids.length) return h("p.empty", {}, m("no_chats"));
  return h("div", {}, await Promise.all(ids.map((id) => section(id, names.get(id), signal))));
}

async function section(id, title, signal) {
  const state = h("p", { role: "status" });
  const list = h("ol.stack.deeds", { "aria-label": title });
  const more = h("button", { onclick: () => attempt(() => load(more.value)) }, t("common.more"));
  const load = async (after) => {
    const view = await api.get(`/chats/${id}/enrichment`, { query: { after }, signal });
    say(view);
    if (!after) fill(list);
    list.append(...view.items.map((run) => card(run, id, load)));
    if (!list.firstChild) list.append(h("li.empty", {}, m("no_runs")));
    more.value = view.next ?? "";
    more.hidden = !view.next;
    return view;
  };
  const say = (view) =>
    fill(state, standing(view, load), h("span.soft", {}, " ",
      m("today", { used: view.tokens_today, most: view.tokens_per_day, model: view.model })));
  if (isBusy(await load())) follow(id, signal, (view) => (isBusy(view) ? say(view) : load()));
  return h("section", {}, h("h2", {}, h("a.plain", { href: `#/chats/${id}` }, title)), state, list, more);
}

function card(run, chat, changed) {
  const { from_position: from, to_position: to, refused, written: wrote } = run;
  const state = run.state === "done" && !wrote.length && run.kind !== "summary" ? "quiet" : run.state;
  const back = () => attempt(async () => {
    const is = await sure(m("undo_title"), m("undo_text"), t("common.undo"));
    if (is && (await undo(run.id))) await changed();
  });
  const took = {
    count: run.calls,
    tokens: run.prompt_tokens + run.completion_tokens,
    seconds: number(Math.round(run.duration_ms / 100) / 10),
    model: run.model,
  };
  return h("li.card", { class: state },
    h("header.row", {},
      h("h3", {}, m(`run.${run.kind}`)),
      h("span.tag", {}, m(`run_state.${state}`)),
      h("time.soft.grow", { title: dateTime(run.created_at) }, ago(run.created_at)),
      run.can_undo && h("button.quiet", { onclick: back }, icon("undo"), t("common.undo"))),
    run.error && h("p.trouble", {}, run.error),
    h("ul", {}, wrote.map((it) => h("li", {},
      h("span.tag", {}, m(`effect.${it.what}`)), " ",
      state === "undone" ? it.title : written(it),
      it.because !== run.why && h("span.soft", {}, " ", it.because)))),
    refused.length > 0 && h("details", {},
      h("summary", {}, m("refused", { count: refused.length })),
      h("ul", {}, refused.map((it) => h("li", {}, it.reason)))),
    h("p.soft", {},
      h("a", { href: `#/chats/${chat}?at=${from}` }, m("lines", { from: from + 1, to: to + 1 })),
      `. ${run.why}`),
    h("small.soft", {}, m("took", took), " ", run.note));
}

/** Ask what to read, say what that takes, and start; the job. */
export async function rebuild(it) {
  const names = await titles();
  const path = `/chronicles/${it.id}/rebuild`;
  return dialog(m("rebuild"), (close) => {
    if (!it.chat_ids.length) return h("p", {}, m("no_chats"));
    const costs = h("div.stack", { role: "status" });
    const estimate = async ({ chat_id, from, to }) => {
      const body = { chat_id, from_position: from && from - 1, to_position: to && to - 1 };
      const found = await api.post(path, body, { query: { dry_run: true } });
      const { calls, prompt_tokens: read, completion_tokens: written } = found;
      const start = () => attempt(async () => close(await api.post(path, body)));
      const least = read.least + written.least;
      const most = read.most + written.most;
      const button = h("button.primary", { type: "button", onclick: start }, m("begin"));
      fill(costs,
        h("p", {}, m("costs", { ...found, least, most, calls: calls.least, calls_most: calls.most })),
        found.messages > 0 && h("footer", {}, button));
    };
    const fields = [
      {
        name: "chat_id",
        label: m("chat"),
        kind: "select",
        options: it.chat_ids.map((id) => [id, names.get(id)]),
        value: it.chat_ids[0],
      },
      ...["from", "to"].map((name) => ({
        name,
        label: m(name),
        kind: "number",
        min: 1,
        step: 1,
        placeholder: m(`${name}_all`),
      })),
    ];
    const form = sendform({ fields, submit: m("estimate"), send: estimate, extra: costs });
    form.element.addEventListener("input", () => fill(costs));
    return h("div.stack", {}, h("p.soft", {}, m("rebuild_text")), form.element);
  });
}

/** A strip that shows a job until it has ended: then `ended()` is called. */
export function strip(signal, ended) {
  const element = h("div.card.stack.work", { hidden: true });
  const bar = progress(m("rebuilding"));
  const state = h("p", { role: "status" });
  const move = ({ done, total }) => bar.show(total ? done / total : null);
  const show = (job) => {
    const over = /done|dead/.test(job.state);
    const how = job.error ?? job.state;
    const said = has(`memory.job.${how}`) ? m(`job.${how}`) : how;
    const stop = () => attempt(() => api.post(`/jobs/${job.id}/stop`));
    const counts = { events: 0, entries: 0, replaced: 0, ...job.counts };
    if (over) toast(`${said} ${m("result", counts)}`, { seconds: 12 });
    fill(state, said);
    fill(element, state, h("div.row", {}, bar.element, h("button", { onclick: stop }, m("stop"))));
    element.hidden = over;
    move(job.progress);
    return over;
  };
  const watch = async ({ id }) => {
    while (!signal.aborted) {
      try {
        const answer = await send(`/jobs/${id}/events`, { signal });
        if (answer.status === 404) return ended();
        for await (const { event, data } of events(answer)) {
          if (event === "progress") move(data);
          else if (show(data)) return ended();
        }
      } catch {
        // Cut off. It tells how things stand when it is asked again.
      }
      await pause(2000, signal);
    }
  };
  return { element, watch };
}
