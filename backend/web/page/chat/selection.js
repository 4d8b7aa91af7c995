/** Select several messages, and hide, show, copy or delete them together. */
import { act, api, attempt, h, t } from "../core.js";
import { copy } from "./actions.js";
import { erase, say } from "./branches.js";
import { alone } from "./cast.js";

/**
 * @returns {{element, begin, box}} The bar with the actions, `begin(message)` begins a selection
 *   with a message, and `box(message)` returns its check box while messages are selected.
 */
export function selection(room) {
  const { path, events, signal } = room;
  const chosen = new Map(); // the selected messages by id
  let isOn = false;
  let latest = null; // the message that was selected last

  const count = h("span.grow", { role: "status" });
  const all = () => [...chosen.values()].sort((one, other) => one.position - other.position);

  function draw() {
    const those = all();
    const isWith = (hidden) => those.some((each) => each.text && each.hidden === hidden);
    count.textContent = say("selected", { count: those.length });
    element.hidden = !isOn;
    hide.hidden = !isWith(false);
    show.hidden = !isWith(true);
    for (const each of [duplicate, remove]) each.disabled = !those.length;
  }

  function turn(is) {
    const { activeElement } = document;
    const message = activeElement.closest(".message") ?? document.querySelector(".message.last");
    const leaves = !is && (element.contains(activeElement) || activeElement.matches(".pick"));
    isOn = is;
    chosen.clear();
    latest = null;
    draw();
    events.dispatchEvent(new Event("selection"));
    // The check box or the bar with the focus is gone.
    if (leaves) message?.focus();
  }

  function choose(message, is) {
    if (is) chosen.set(message.id, message);
    else chosen.delete(message.id);
  }

  /** Select the messages from the last selected one to this one, as far as they are loaded. */
  function reach({ position }, is) {
    const from = latest ?? position;
    for (let at = Math.min(from, position); at <= Math.max(from, position); at++) {
      const message = path.at(at);
      if (message && canSelect(message)) choose(message, is);
    }
  }

  const canSelect = ({ removed, presence, status }) => !removed && !presence && status !== "streaming";

  function box(message) {
    if (!isOn || !canSelect(message)) return null;
    const onclick = ({ target, shiftKey }) => {
      if (shiftKey) reach(message, target.checked);
      else choose(message, target.checked);
      latest = message.position;
      draw();
      if (shiftKey) events.dispatchEvent(new Event("selection"));
    };
    const label = say("select_named", { n: message.position + 1, name: message.author });
    return h("input.pick", { type: "checkbox", "aria-label": label, checked: chosen.has(message.id), onclick });
  }

  /** Hide the selected messages from the model, or show them. */
  const veil = (hidden) => alone(room, () => attempt(async () => {
    for (const { id, text, hidden: is } of all()) {
      if (!text || is === hidden) continue;
      const message = await api.patch(`/messages/${id}`, { hidden });
      chosen.set(id, message);
      path.put(message);
    }
    draw();
  }));
  const clear = alone(room, () => {
    erase(all(), room);
    turn(false);
  });
  const close = () => turn(false);

  const hide = act("hide", say("hide"), veil(true));
  const show = act("show", say("show"), veil(false));
  const duplicate = act("copy", t("common.copy"), () =>
    copy(all().map(({ author, text }) => `${author}: ${text}`).join("\n\n")));
  const remove = act("delete", t("common.delete"), clear);
  const element = h("div.row.selection", { role: "toolbar", "aria-label": say("selection"), hidden: true },
    count, hide, show, duplicate, remove, act("close", t("common.close"), close, "quiet"));

  const onkey = (event) => {
    if (event.key !== "Escape" || !isOn || event.defaultPrevented || event.target.closest("dialog, .panel")) return;
    event.preventDefault();
    close();
  };
  addEventListener("keydown", onkey, { signal, capture: true });
  draw();

  return {
    element,
    box,
    begin(message) {
      turn(true);
      choose(message, true);
      latest = message.position;
      draw();
      events.dispatchEvent(new Event("selection"));
      document.querySelector(".pick:checked")?.focus();
    },
  };
}
