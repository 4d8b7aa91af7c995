/** The text field for the user's lines. Drafts are kept until a turn has accepted them. */
import { api, complain, explained, fill, h, icon, kept, on, remedy, session, settled, t } from "../core.js";
import { tools } from "./actions.js";
import { isGroup } from "./cast.js";
import { completions, read } from "./commands.js";
import { completing } from "./completing.js";
import { ensemble } from "./ensemble.js";
import { attaching } from "./pictures.js";
import { quickReplies } from "./quick-replies.js";

/** Disable a button until a moment, with a countdown of seconds on it. */
function patience(button, moment) {
  const seconds = Math.ceil((moment - Date.now()) / 1000);
  button.disabled = seconds > 0;
  button.textContent = seconds > 0 ? t("common.retry_in", { seconds }) : t("common.retry");
  if (seconds > 0) setTimeout(() => button.isConnected && patience(button, moment), 1000);
}

/** The tokens of the line and its pictures, counted when the user stops typing. */
function counter(room) {
  const element = h("small.figure.counted", { "aria-live": "off" });
  let asked = new AbortController();
  let [line, pictured] = ["", 0];
  const show = (count) => (element.textContent = count ? t("common.tokens", { count }) : "");
  const ask = settled(async () => {
    const signal = AbortSignal.any([room.signal, asked.signal]);
    try {
      const { counts } = await api.post("/tokens", { texts: [line], model: room.settings?.model }, { signal });
      show(counts[0] + pictured);
    } catch {
      // The chat works without token counts, so errors are ignored.
    }
  }, 400);
  return {
    element,
    count(now, more) {
      asked.abort();
      asked = new AbortController();
      [line, pictured] = [now, more];
      if (line.trim()) return ask();
      ask.drop();
      show(pictured);
    },
  };
}

/** True if a press of Enter sends the line. With Ctrl or Cmd it always does. */
const sends = ({ key, shiftKey, ctrlKey, metaKey, isComposing }) =>
  key === "Enter" && !shiftKey && !isComposing &&
  (ctrlKey || metaKey || (session.page?.enter_sends ?? matchMedia("(hover: hover)").matches));

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
    offers.update();
    tokens.count(area.value, pictures.tokens);
    weigh();
  };
  const area = h("textarea", {
    rows: 1,
    value: kept.get(draft, ""),
    label: t("chat.line"),
    placeholder: t("chat.write"),
    enterkeyhint: session.page?.enter_sends ? "send" : null,
    oninput: keep,
    onkeydown(event) {
      if (offers.key(event) || !sends(event)) return;
      event.preventDefault();
      submit();
    },
  });
  const pictures = attaching(room, area);
  const button = h("button.primary", { type: "submit" });
  const tokens = counter(room);
  const offers = completing(area, (line) => completions(line, room), write);
  /** A quick reply is sent, or inserted into the line that the user is writing. */
  const quick = quickReplies(room, (text) => {
    const isSent = !area.value.trim() && !room.busy;
    area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
    write(area.value);
    if (isSent) submit();
  });
  const [chips, row] = tools(room);
  row.append(tokens.element);
  const desk = h("div.desk", pictures.button, area, button);
  const writing = h("div", quick, offers.element, pictures.element, desk, group.element, chips, row);
  const said = h("div.notice", { role: "status" });

  const notice = (content, { again, wait = 0, link } = {}) => {
    const retry = again && h("button.quiet", { onclick: again });
    fill(said, content && h("div.grow", content), link, retry);
    if (retry) patience(retry, Date.now() + wait * 1000);
  };

  /**
   * Send the line. `also` are other members of the turn, `without` leaves the line in the field.
   */
  async function submit(also, without = false) {
    if (room.busy || (!also && button.disabled)) return;
    let line = without ? "" : area.value;
    const files = without ? [] : pictures.files;
    // The text is locked until the server has accepted it.
    area.readOnly = true;
    const accepted = () => {
      area.readOnly = false;
      if (line.trim() || files.length) area.value = line = "";
      keep();
      room.show();
    };
    try {
      const { text, run, body, isPlain } = read(line, room);
      if (run) {
        notice();
        await run(group.audience);
        accepted();
        if (!also) return;
      }
      const wish = body ?? group.wish(text, also ?? (line.trim() || files.length ? undefined : next()), { isPlain, files });
      const ontaken = () => {
        group.taken();
        if (wish.files) pictures.clear();
        accepted();
      };
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

  /** The only character of a chat, if it can speak after a message of the narrator. */
  const next = () => {
    const { role, presence, hidden } = room.path.last() ?? {};
    const [only, ...others] = room.members;
    if (role === "system" && !presence && !hidden && only && !others.length) return { speaker: only.id };
  };

  /** An empty line asks for a reply to the last line: to the user's, or in a group to any. */
  const weigh = () => {
    const last = room.path.last();
    const isOpen = last && (last.role === "user" || last.presence || isGroup(room) || next());
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
  on(room.events, "busy chat chain", draw);
  // A question of the turn has to be answered before the next line.
  on(room.events, "waiting", () => (writing.hidden = Boolean(room.waiting)));
  on(room.path, "change", weigh);
  draw();
  tokens.count(area.value, pictures.tokens);
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
    /** The tokens of these pictures, an estimate. */
    get pictured() {
      return pictures.tokens;
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
