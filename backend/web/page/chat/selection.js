/** Select several messages, and hide, show, copy or delete them together. */
import { act, api, attempt, h, t } from "../core.js";
import { selection } from "../core/selection.js";
import { copy } from "./actions.js";
import { erase, say } from "./branches.js";
import { alone } from "./cast.js";

const canSelect = ({ removed, presence, status }) => !removed && !presence && status !== "streaming";

/**
 * @returns {object} A selection. `begin(message)` begins it with a message, and `box(message)`
 *   returns the check box of a message while messages are selected.
 */
export function messageSelection(room) {
  const { path, events, signal } = room;
  let latest = null; // the message that was selected last

  const all = () => self.items.sort((one, other) => one.position - other.position);
  const changed = () => events.dispatchEvent(new Event("selection"));

  /** Select the messages from the last selected one to this one, as far as they are loaded. */
  function reach({ position }, is) {
    const from = latest ?? position;
    for (let at = Math.min(from, position); at <= Math.max(from, position); at++) {
      const message = path.at(at);
      if (message && canSelect(message)) self.choose(message, is);
    }
  }

  function box(message) {
    if (self.element.hidden || !canSelect(message)) return null;
    const onclick = ({ target, shiftKey }) => {
      if (shiftKey) reach(message, target.checked);
      else self.choose(message, target.checked);
      latest = message.position;
      self.draw();
      if (shiftKey) changed();
    };
    const label = say("select_named", { n: message.position + 1, name: message.author });
    return h("input.pick", { type: "checkbox", label, checked: self.has(message), onclick });
  }

  /** Hide the selected messages from the model, or show them. */
  const veil = (hidden) => alone(room, () => attempt(async () => {
    for (const { id, text, hidden: is } of all()) {
      if (!text || is === hidden) continue;
      const message = await api.patch(`/messages/${id}`, { hidden });
      self.choose(message, true);
      path.put(message);
    }
    self.draw();
  }));
  const clear = alone(room, () => {
    erase(all(), room);
    self.turn(false);
  });

  const hide = act("hide", say("hide"), veil(true));
  const show = act("show", say("show"), veil(false));
  const duplicate = act("copy", t("common.copy"), () =>
    copy(all().map(({ author, text }) => `${author}: ${text}`).join("\n\n")));
  const self = selection({
    label: say("selection"),
    signal,
    counted: (count) => say("selected", { count }),
    tools: [hide, show, duplicate, act("delete", t("common.delete"), clear)],
    turned(is, leaves) {
      const message = document.activeElement.closest(".message") ?? document.querySelector(".message.last");
      latest = null;
      changed();
      if (leaves) message?.focus();
    },
    drawn(items) {
      const isWith = (hidden) => items.some((each) => each.text && each.hidden === hidden);
      hide.hidden = !isWith(false);
      show.hidden = !isWith(true);
    },
  });
  return Object.assign(self, {
    box,
    begin(message) {
      self.turn(true);
      self.choose(message, true);
      latest = message.position;
      self.draw();
      changed();
      document.querySelector(".pick:checked")?.focus();
    },
  });
}
