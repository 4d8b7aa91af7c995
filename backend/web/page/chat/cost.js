/** What a chat and its last reply cost, under the chat's name. */
import { api } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { money, t } from "../core/words.js";

/** What a usage comes to in words: money where a price is known, tokens in any case. */
export function costs({ cost, prompt_tokens: read, completion_tokens: written }) {
  const tokens = t("common.tokens", { count: read + written });
  return cost ? `${money(cost.amount)}, ${tokens}` : tokens;
}

/** The figures of a room, read again after each turn. Without any there is nothing. */
export function costing(room) {
  const element = h("small.figure.cost");
  const path = `/chats/${room.chat.id}/usage`;
  const read = async () => {
    const { id, role } = room.path.last() ?? {};
    const of = (query) => api.get(path, { query, signal: room.signal });
    const [chat, reply] = await Promise.all([of(), role === "assistant" && of({ reply_id: id })]);
    const words = [
      reply?.turns > 0 && t("chat.cost_reply", { cost: costs(reply) }),
      chat.turns + chat.runs > 0 && t("chat.cost_chat", { cost: costs(chat) }),
    ];
    fill(element, words.filter(Boolean).join(" · "));
    element.title = chat.by_model.map((each) => `${each.model}: ${costs(each)}`).join("\n");
  };
  // A figure is a help: without it the chat works as well.
  const again = () => read().catch(() => {});
  room.events.addEventListener("turn", again);
  again();
  return element;
}
