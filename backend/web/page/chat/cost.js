/** The cost of a chat, of its last reply and of the next one, shown under the chat's name. */
import { api, fill, h, money, on, settled, t } from "../core.js";
import { warnOfLimit } from "./limit.js";

/**
 * Return the parts of a usage: tokens, and money before them if prices are known.
 * Some models may have no price, and some replies no counts. `brief` leaves out missing prices.
 */
function partsOf(usage, brief = false) {
  const { cost, prompt_tokens: read, completion_tokens: written, unreported, by_model: models = [usage] } = usage;
  const missing = unreported > 0 && t("chat.cost_unreported", { count: unreported });
  if (!(usage.turns + usage.runs) && missing) return [t("chat.cost_uncounted")];
  const tokens = t("common.tokens", { count: read + written });
  const amount = cost && money(cost.amount);
  const some = cost && (missing || models.some((each) => !each.cost));
  const parts = cost ? [some ? t("chat.cost_least", { amount }) : amount, tokens] : [tokens, !brief && t("chat.cost_unknown")];
  return [...parts, missing].filter(Boolean);
}

/** Render a usage as text. */
export const costs = (usage) => partsOf(usage).join(", ");

const told = (usage) => usage && usage.turns + usage.runs + usage.unreported > 0;

/** Tokens of a reply, if the chat has none yet. */
const USUAL_REPLY = 300;
/** Characters of a token, for the line that is not sent yet. */
const CHARACTERS = 4;

/**
 * Estimate the cost of the next turn: the last prompt, the line with its pictures, and a reply as
 * long as the last one.
 * `last` is the usage of the last reply. It shows how much of a prompt is read from the cache.
 * Returns null if the price is unknown.
 */
function estimate({ model, totals, composer }, last) {
  if (!model?.price || !totals?.prompt) return null;
  const { input, output } = model.price;
  const again = model.price.cached_input ?? input;
  const { turns = 0, prompt_tokens: read, cached_tokens: cached, completion_tokens: written } = last ?? {};
  const share = read ? cached / read : 0;
  const prompt = totals.prompt + composer.text.length / CHARACTERS + composer.pictured;
  const reply = turns ? written / turns : USUAL_REPLY;
  return (prompt * (share * again + (1 - share) * input) + reply * output) / 1e6;
}

/** The costs of a room, read again after each turn. Hidden without any costs. */
export function costing(room) {
  const past = h("span");
  const next = h("span", { title: t("chat.cost_next_help") });
  const element = h("small.figure.cost", past, " ", next);
  const path = `/chats/${room.chat.id}/usage`;
  let last = null;
  const guess = () => {
    const amount = estimate(room, last);
    fill(next, amount > 0 && t("chat.cost_next", { cost: money(amount) }));
  };
  const read = async () => {
    const { id, role } = room.path.last() ?? {};
    const of = (query) => api.get(path, { query, signal: room.signal });
    const [chat, reply] = await Promise.all([of(), role === "assistant" && of({ reply_id: id })]);
    last = told(reply) ? reply : null;
    // In narrow layouts only the inspector shows what is roomy.
    const words = [["reply", reply], ["chat", chat]].filter(([, usage]) => told(usage)).flatMap(([name, usage], at) => {
      const [cost, ...rest] = partsOf(usage, true);
      return [at > 0 && " · ", t(`chat.cost_${name}`, { cost }), h("span.roomy", rest.map((part) => `, ${part}`))];
    });
    const unknown = chat.turns + chat.runs > 0 && !chat.cost && h("span.roomy", `, ${t("chat.cost_unknown")}`);
    fill(past, words, unknown);
    element.title = chat.by_model.map((each) => `${each.model}: ${costs(each)}`).join("\n");
    guess();
  };
  // The chat works without costs, so errors are ignored.
  const again = () => read().catch(() => {});
  on(room.events, "turn", () => {
    again();
    warnOfLimit(room.signal).catch(() => {});
  });
  on(room.events, "asked", guess);
  const typed = settled(guess);
  on(room.composer.element, "input", typed);
  again();
  return element;
}
