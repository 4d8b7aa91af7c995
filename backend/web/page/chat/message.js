/** A message: its speaker, text, state and actions. */
import { fill, h, icon, t, timed } from "../core.js";
import { growing, markdown } from "../core/markdown.js";
import { face } from "../library/faces.js";
import { changed, decided } from "../play/changes.js";
import { gestures, isQuiet, mending, promotion, toolbar } from "./actions.js";
import { mark } from "./audience.js";
import { m } from "./cast.js";
import { isCut, notices } from "./notices.js";
import { gallery, wording } from "./pictures.js";

const SIGNS = { present: "people", absent: "leave", muted: "mute" };

/** True if a message tells one character what happened before it joined. */
const isBriefing = ({ role, character_id: who, audience }) =>
  role === "system" && who && Array.isArray(audience);

/** @returns {{element, update}} `update(message)` shows the new state of the message. */
export function drawn(first, room) {
  const element = h("article.message", { tabindex: -1 });
  const musing = h("div");
  const thoughts = h("details.thoughts", h("summary", t("chat.thoughts")), musing);
  let id = null;
  let opened = null;
  let text = null;

  const update = (message) => {
    const { author, role, status, hidden, created_at: when } = message;
    const waits = message.id === room.waiting?.reply_id;
    const grows = status === "streaming" && !waits;
    thoughts.hidden = !message.thinking;
    musing.textContent = message.shown_thinking ?? message.thinking;
    if (grows && text && id === message.id) return text.write(message.text);
    // A message that is being edited is not drawn again.
    if (id === message.id && element.matches(".edited")) return;
    const silent = !grows && !waits && !message.text && message.thinking;
    if (silent && opened !== message.id) thoughts.open = true;
    opened = silent && message.id;
    id = message.id;
    if (message.removed) {
      text = null;
      element.className = "message removed";
      return fill(element);
    }
    if (isQuiet(message) && !grows) {
      element.className = `message notice-line ${role}`;
      element.ariaLabel = m("change");
      const words = message.presence ? message.text : m("passed", { name: author });
      return fill(element, h("p", icon(SIGNS[message.presence] ?? "minus"), words), toolbar(message, room));
    }
    element.className = `message ${role} ${isBriefing(message) ? "briefing" : ""} ${hidden ? "left-out" : ""}`;
    const isTold = isBriefing(message);
    element.ariaLabel = isTold ? m("was_told", { name: author }) : author;
    element.ariaBusy = String(grows);
    const { activeElement } = document;
    const pressed = element.contains(activeElement) && activeElement.closest(".tools button");
    const prose = h("div.prose", !grows && markdown(message.shown ?? wording(message)));
    text = grows ? growing(prose) : null;
    text?.write(message.text);
    fill(
      element,
      !grows && room.selection.box(message),
      likeness(message, room),
      h(
        "header",
        h("b", element.ariaLabel),
        !isTold && mark(message, room),
        hidden && h("span.tag", { title: t("chat.hidden_help") }, icon("hide"), t("chat.hidden")),
        h("small", !grows && t("common.tokens", { count: message.tokens })),
        timed(when),
      ),
      thoughts,
      prose,
      gallery(message),
      grows
        ? h("p.writing", { role: "img", label: t("chat.writing", { name: author }) },
            h("i"), h("i"), h("i"))
        : [
            status !== "complete" && h("p.state", t(`chat.${waits ? "waiting" : status}`)),
            notices(message),
            silent && h("p.state", t("chat.only_thoughts"), promotion(message, room)),
            isCut(message) && !waits && mending(room),
            decided(message, room),
            changed(message, room),
            !waits && toolbar(message, room),
          ],
    );
    // The focus stays on the same button.
    if (pressed) (element.querySelector(`[aria-label="${pressed.ariaLabel}"]:enabled`) ?? element).focus();
  };
  update(first);
  gestures(element, room);
  return { element, update };
}

function likeness({ role, author, character_id: character, persona_id: persona }, room) {
  const [kind, those, own] =
    role === "user" ? ["personas", room.personas, persona] : ["characters", room.people, character];
  return face(those.find(({ id }) => id === own) ?? { name: author }, { kind });
}
