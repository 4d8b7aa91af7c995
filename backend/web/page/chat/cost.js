/** The cost of a chat and of its last reply, shown under the chat's name. */
import { api } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { money, t } from "../core/words.js";

/**
 * Render a usage: tokens, and money if prices are known.
 * Some models may have no price, and some replies no counts. `brief` leaves out missing prices.
 */
export function costs(usage, { brief = false } = {}) {
  const { cost, prompt_tokens: read, completion_tokens: written, unreported, by_model: models = [usage] } = usage;
  const missing = unreported > 0 && t("chat.cost_unreported", { count: unreported });
  if (!(usage.turns + usage.runs) && missing) return t("chat.cost_uncounted");
  const tokens = t("common.tokens", { count: read + written });
  const amount = cost && money(cost.amount);
  const some = cost && (missing || models.some((each) => !each.cost));
  const parts = cost ? [some ? t("chat.cost_least", { amount }) : amount, tokens] : [tokens, !brief && t("chat.cost_unknown")];
  return [...parts, missing].filter(Boolean).join(", ");
}

const told = (usage) => usage && usage.turns + usage.runs + usage.unreported > 0;

/** The costs of a room, read again after each turn. Hidden without any costs. */
export function costing(room) {
  const element = h("small.figure.cost");
  const path = `/chats/${room.chat.id}/usage`;
  const read = async () => {
    const { id, role } = room.path.last() ?? {};
    const of = (query) => api.get(path, { query, signal: room.signal });
    const [chat, reply] = await Promise.all([of(), role === "assistant" && of({ reply_id: id })]);
    const words = [
      told(reply) && t("chat.cost_reply", { cost: costs(reply, { brief: true }) }),
      told(chat) && t("chat.cost_chat", { cost: costs(chat, { brief: true }) }),
    ];
    // In narrow layouts only the inspector shows this.
    const unknown = chat.turns + chat.runs > 0 && !chat.cost && h("span.roomy", {}, `, ${t("chat.cost_unknown")}`);
    fill(element, words.filter(Boolean).join(" · "), unknown);
    element.title = chat.by_model.map((each) => `${each.model}: ${costs(each)}`).join("\n");
  };
  // The chat works without costs, so errors are ignored.
  const again = () => read().catch(() => {});
  room.events.addEventListener("turn", again);
  again();
  return element;
}
