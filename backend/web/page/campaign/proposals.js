/**
 * Proposed changes that wait for a decision: the current and the proposed state, and the source.
 */
import {
  act, api, complain, fill, h, isPending, number, on, sendLater, settled, timed, toast,
} from "../core.js";
import { source } from "./ledger.js";
import { c, label } from "./parts.js";
import { said } from "./said.js";
import { World } from "./world.js";

/** A maximum for one page that no campaign reaches. */
const MOST = 500;

/** Return the number of proposals that wait for a decision. */
export const waiting = async (path, signal) =>
  (await api.get(`${path}/proposals`, { query: { limit: MOST }, signal })).items.length;

/**
 * The proposals of a world, hidden if there are none. `told(count)` gets their number.
 *
 * @returns {{element, read, soon}} `soon()` reads them again after a short pause.
 */
export function proposals(world, signal, told) {
  const count = h("span.tag.badge");
  const list = h("ol.ledger.proposals", { label: c("tabs.proposals") });
  const summary = h("summary", c("tabs.proposals"), " ", count);
  const element = h("details.group", { open: true, hidden: true }, summary, h("p.soft", c("proposals_help")), list);
  let known = "";
  const read = async () => {
    const all = (await api.get(`${world.path}/proposals`, { query: { limit: MOST }, signal })).items;
    const items = all.filter((each) => !isPending(refusal(each), "POST"));
    const found = JSON.stringify(items);
    if (found === known) return;
    known = found;
    fill(list, items.map((each) => row(each, world, accept, refuse)));
    count.textContent = number(items.length);
    element.hidden = !items.length;
    told?.(items.length);
  };
  const accept = async ({ id, revision, target }, query) => {
    try {
      await api.post(`${world.path}/proposals/${id}/accept`, undefined, { ifMatch: revision, query });
      toast(c("decided.accept", { name: title(target) }));
    } catch (error) {
      complain(error);
    }
    await Promise.all([world.read(), read()]).catch(complain);
  };
  const refusal = ({ id }) => `${world.path}/proposals/${id}/refuse`;
  const refuse = (item) =>
    sendLater(c("decided.refuse", { name: title(item.target) }), refusal(item), { method: "POST", ifMatch: item.revision, then: read });
  const soon = settled(() => read().catch(complain), 250, signal);
  on(world, "change", soon, signal);
  on(window, "pending", () => read().catch(complain), signal);
  return { element, read, soon };
}

const title = ({ kind, name }) => (kind === "world" ? c("kinds.world") : name || c(`kinds.${kind}`));

/** A proposal: the current and the proposed state, the reason, and the possible answers. */
function row(it, world, accept, refuse) {
  const { target, reason, because, mention, candidates, message_id: line, created_at: when } = it;
  const name = (!target.name && mention) || title(target);
  const answers = candidates.length
    ? candidates.map((each) => act("check", c("meant", each), () => accept(it, { item_id: each.id })))
    : act("check", c("accept"), () => accept(it));
  return h("li", { tabindex: -1, label: name },
    h("header.row",
      h("strong", name),
      target.name && target.kind !== "world" && h("span.soft", c(`kinds.${target.kind}`)),
      h("span.tag", c(`reasons.${reason}`, it))),
    sides(it, world),
    because && h("p.quote", because),
    h("p.row.answers", answers, act("close", c("refuse"), () => refuse(it))),
    h("p.row.soft", timed(when), source(line)));
}

/**
 * Compare the current and the proposed state field by field. A fact is shown beside the one that it
 * contradicts.
 */
function sides({ is_new: isNew, then, now, proposed, conflicts, contradicts, target, mention, candidates }, world) {
  const current = contradicts ? { text: contradicts.now } : now;
  const before = contradicts ? { text: contradicts.then } : then;
  const cell = (kind, key, value, ...more) => h("td", h(kind, said(key, value, world)), more);
  const small = (text) => h("small.soft", text);
  const proposal = (key) => (key in proposed && proposed[key] != null) || !candidates.length;
  return h("table.sides",
    h("caption.unseen", c("sides", { name: title(target) })),
    h("thead", h("tr", ["field", "now", "proposed"].map((each) => h("th", { scope: "col" }, c(`columns.${each}`))))),
    h("tbody", Object.keys(proposed).map((key) => h("tr",
      h("th", { scope: "row" }, label(key)),
      isNew && !(key in current)
        ? h("td", "–")
        : cell("del", key, current[key],
          conflicts[key] && small(c(`whose.${conflicts[key]}`)),
          key in before && key in current && JSON.stringify(before[key]) !== JSON.stringify(current[key]) && small(c("was", { value: said(key, before[key], world) }))),
      proposal(key) ? cell("ins", key, proposed[key]) : h("td", `“${mention}”`)))));
}

/** The proposals on a campaign's page. */
export default async function (it, { signal }) {
  const world = new World(it.id, signal);
  await world.read();
  const none = h("p.empty", c("no_proposals"));
  const all = proposals(world, signal, (count) => (none.hidden = count > 0));
  await all.read();
  on(document, "visibilitychange", () => document.hidden || all.soon(), signal);
  return h("section.world", none, all.element);
}
