/** The text field for the user's lines. Drafts are kept until a turn has accepted them. */
import { complain, explained, remedy } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { kept } from "../core/store.js";
import { t } from "../core/words.js";
import { tools } from "./actions.js";
import { isGroup } from "./cast.js";
import { ensemble } from "./ensemble.js";
import { attaching } from "./pictures.js";

/** Disable a button until a moment, with a countdown of seconds on it. */
function patience(button, moment) {
  const seconds = Math.ceil((moment - Date.now()) / 1000);
  button.disabled = seconds > 0;
  button.textContent = seconds > 0 ? t("common.retry_in", { seconds }) : t("common.retry");
  if (seconds > 0) setTimeout(() => button.isConnected && patience(button, moment), 1000);
}

/**
 * @returns {{element, text, focus, notice}} `notice(content, {again, wait, link})` shows a message:
 *   `again` repeats the turn, after `wait` seconds; `link` leads to the setting that fixes the
 *   problem. Without arguments it hides the message.
 */
export function composer(room) {
  const draft = `draft.${room.chat.id}`;
  const group = ensemble(room);
  const write = (value) => {
    area.value = value;
    keep();
    area.focus();
  };
  const keep = () => {
    kept.set(draft, area.value || null);
    group.complete(area.value, write);
    weigh();
  };
  const area = h("textarea", {
    rows: 1,
    value: kept.get(draft, ""),
    "aria-label": t("chat.line"),
    placeholder: t("chat.write"),
    oninput: keep,
    onkeydown(event) {
      if (event.key === "Tab" && !event.shiftKey && group.first && !event.isComposing) {
        event.preventDefault();
        write(group.first);
      }
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      if (!matchMedia("(hover: hover)").matches) return;
      event.preventDefault();
      submit();
    },
  });
  const pictures = attaching(room, area);
  const button = h("button.primary", { type: "submit" });
  const writing = h("div", {}, group.suggestions, pictures.element,
    h("div.desk", {}, pictures.button, area, button), group.element, tools(room));
  const said = h("div.notice", { role: "status" });

  const notice = (content, { again, wait = 0, link } = {}) => {
    const retry = again && h("button.quiet", { type: "button", onclick: again });
    fill(said, content && h("div.grow", {}, content), link, retry);
    if (retry) patience(retry, Date.now() + wait * 1000);
  };

  /**
   * Send the line. `also` are other members of the turn, `without` leaves the line in the field.
   */
  async function submit(also, without = false) {
    if (room.busy || (!also && button.disabled)) return;
    const line = without ? "" : area.value;
    const files = without ? [] : pictures.files;
    // The text is locked until the server has accepted it.
    area.readOnly = true;
    const ontaken = () => {
      area.readOnly = false;
      if (line.trim() || files.length) area.value = "";
      if (files.length) pictures.clear();
      group.taken();
      keep();
      room.show();
    };
    try {
      const wish = group.wish(line, also, files);
      if (wish) await room.take(wish, { ontaken });
      else write("");
    } catch (error) {
      if (error.body) notice(explained(error), { link: remedy(error) });
      else complain(error);
      if (error.slug === "speaker-needed") group.focus();
    }
    area.readOnly = false;
  }
  Object.assign(room, { submit, speak: (speaker) => submit({ speaker }) });

  /** An empty line asks for a reply to the last line: to the user's, or in a group to any. */
  const weigh = () => {
    const last = room.path.last();
    const isOpen = last && (last.role === "user" || last.presence || isGroup(room));
    const isEmpty = !area.value.trim() && !pictures.files.length;
    const nothing = !room.busy && (pictures.pending || (isEmpty && !isOpen));
    if (nothing && button.matches(":focus-visible")) area.focus();
    button.disabled = nothing;
  };
  const draw = () => {
    fill(button, icon(room.busy ? "stop" : "send"), room.chain && t("chat.stop"));
    button.classList.toggle("long", Boolean(room.chain));
    button.ariaLabel = button.title = t(room.busy ? "chat.stop" : "chat.send");
    weigh();
  };
  for (const name of ["busy", "chat", "chain"]) room.events.addEventListener(name, draw);
  // A question of the turn has to be answered before the next line.
  room.events.addEventListener("waiting", () => (writing.hidden = Boolean(room.waiting)));
  room.path.addEventListener("change", weigh);
  draw();
  const onsubmit = (event) => {
    event.preventDefault();
    if (room.busy) room.stop().catch(complain);
    else submit();
  };
  pictures.over(writing);
  return {
    element: h("form.composer", { onsubmit }, said, writing),
    notice,
    focus: () => area.focus(),
    /** The member that was chosen to speak next, or null. */
    get speaker() {
      return group.speaker;
    },
    /** The ids of the pictures of the line. */
    get files() {
      return pictures.files;
    },
    get text() {
      return area.value;
    },
    set text(value) {
      area.value = value;
      keep();
    },
  };
}
