/** Rebuild a chronicle from a chat: its cost and its progress. */
import { row } from "../activity.js";
import { api, commit, dialog, fill, h, on, pause, sendform, toast } from "../core.js";
import { m, titles } from "./parts.js";

/** Ask for the messages to read, show the cost, and start. Returns the job, or undefined. */
export async function rebuild({ id, chat_ids: chats }) {
  const names = await titles();
  const path = `/chronicles/${id}/rebuild`;
  return dialog(m("rebuild"), (close) => {
    if (!chats.length) return h("p", m("no_chats"));
    const costs = h("div", { role: "status" });
    const estimate = async ({ chat_id, from, to }) => {
      const body = { chat_id, from_position: from && from - 1, to_position: to && to - 1 };
      await commit();
      const found = await api.post(path, body, { query: { dry_run: true } });
      const { messages, calls, prompt_tokens: read, completion_tokens: written } = found;
      const least = read.least + written.least;
      const most = read.most + written.most;
      const figures = { ...found, least, most, calls: calls.least, calls_most: calls.most };
      const said = h("p", m("costs", figures));
      const send = async () => close(await api.post(path, body));
      fill(costs, messages ? sendform({ fields: [], submit: m("begin"), send, extra: said }).element : said);
    };
    const part = (name) =>
      ({ name, label: m(name), kind: "number", min: 1, step: 1, placeholder: m(`${name}_all`) });
    const options = chats.map((each) => [each, names.get(each)]);
    const fields = [
      { name: "chat_id", label: m("chat"), kind: "select", options, value: chats[0] },
      part("from"),
      part("to"),
    ];
    const { element } = sendform({ fields, submit: m("estimate"), send: estimate });
    on(element, "input", () => fill(costs));
    return h("div.stack", h("p.soft", m("rebuild_text")), element, costs);
  });
}

const isUnderWay = ({ kind, state }) => kind.endsWith("rebuild") && !/done|dead/.test(state);

/** The progress of a chronicle's rebuild and its result. `ended()` is called at the end. */
export function strip({ id }, signal, ended) {
  const element = h("ul.list.rebuilt");
  const read = () => api.get(`/chronicles/${id}/rebuild`, { signal });
  const watch = async (job) => {
    for (; isUnderWay(job); job = await read().catch(() => job)) {
      fill(element, row(job, () => {}));
      await pause(1000, signal);
      if (signal.aborted) return;
    }
    fill(element, row(job, async () => watch(await read())));
    toast(m("result", { events: 0, entries: 0, replaced: 0, ...job.counts }), { seconds: 12 });
    ended();
  };
  // A rebuild that already runs.
  const look = async () => {
    const { items } = await api.get("/jobs", { signal });
    const found = items.some(isUnderWay) && (await read());
    if (found && isUnderWay(found)) watch(found);
  };
  look().catch(() => {});
  return { element, watch };
}
