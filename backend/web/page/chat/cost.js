/** The cost of a chat and of its last reply. */
import { api } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { money, t } from "../core/words.js";

/**
 * Return a usage as text: tokens, and money if the price is known. Some models have no price, and
 * some replies are not counted. `brief` does not mention missing prices.
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

/** The figures of a room, read again after each turn. Empty if there are none. */
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
    // On narrow screens only the inspector shows this.
    const unknown = chat.turns + chat.runs > 0 && !chat.cost && h("span.roomy", {}, `, ${t("chat.cost_unknown")}`);
    fill(element, words.filter(Boolean).join(" · "), unknown);
    element.title = chat.by_model.map((each) => `${each.model}: ${costs(each)}`).join("\n");
  };
  // Errors are ignored, because the chat works without the figures.
  const again = () => read().catch(() => {});
  room.events.addEventListener("turn", again);
  again();
  return element;
}
