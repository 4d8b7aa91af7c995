/** The tools of a chat with several characters: the next speaker, whispers, and automatic replies. */
import { act, dialog, fill, h, icon, kept, list, menu, on, sendform, set } from "../core.js";
import { alone, isGroup, m } from "./cast.js";
import { read } from "./whisper.js";

const MOST_REPLIES = 50;
const USUAL_REPLIES = 5;

/**
 * @returns {{element, wish, taken, audience}} `wish(line)` returns the line with its files, audience and speaker;
 *   with `isPlain`, it is not read as a command. `taken()` says that a turn has it.
 */
export function ensemble(room) {
  const { events } = room;
  let speaker = null;
  let whispering = false;
  const listeners = new Set();

  const next = h("button.next", { "aria-haspopup": "menu", onclick: choose });
  const whisper = act("whisper", m("whisper"), () => {
    whispering = !whispering;
    draw();
    if (whispering) whom.querySelector("button")?.focus();
  });
  const talk = act("chat", m("talk"), alone(room, ask));
  const whom = h("div.chips", { role: "group", label: m("whisper_to") });
  const row = h("div.row.composing.ensemble", { role: "group", label: m("group") }, next, whisper, talk);
  const element = h("div", whom, row);

  function choose({ currentTarget }) {
    const pick = (id) => () => {
      speaker = id;
      draw();
      events.dispatchEvent(new Event("speaker"));
    };
    const entry = (id, label) => ({ label, icon: speaker === id ? "check" : "", act: pick(id) });
    const here = room.members.filter(({ presence }) => presence !== "absent");
    menu(currentTarget, [entry(null, m("by_itself")), null, ...here.map(({ id, name }) => entry(id, name))]);
  }

  function ask() {
    dialog(m("talk"), (close) => {
      const usual = kept.get("replies") ?? (room.settings?.group?.auto_replies || USUAL_REPLIES);
      const field = { name: "auto_replies", kind: "number", label: m("replies"), help: m("replies_help"), min: 1, max: MOST_REPLIES, step: 1, required: true, value: usual };
      return sendform({
        fields: [field],
        submit: m("start"),
        async send(values) {
          kept.set("replies", values.auto_replies);
          close();
          room.submit({ ...values, speaker }, true);
        },
      }).element;
    });
  }

  const nameOf = (id) => room.members.find((each) => each.id === id)?.name;

  function draw() {
    element.hidden = !isGroup(room);
    const ids = new Set(room.members.map(({ id }) => id));
    if (!ids.has(speaker) || room.members.find(({ id }) => id === speaker).presence === "absent") speaker = null;
    for (const id of listeners) if (!ids.has(id)) listeners.delete(id);
    const way = room.settings?.group?.next_speaker ?? "mention";
    fill(next, h("span.clip", speaker ? m("next", { name: nameOf(speaker) }) : m(`next_ways.${way}`)), icon("down"));
    set(whisper, { pressed: whispering });
    const chip = ({ id, name }) => {
      const onclick = ({ currentTarget }) => {
        if (!listeners.delete(id)) listeners.add(id);
        currentTarget.ariaPressed = listeners.has(id);
      };
      return h("button.tag", { pressed: listeners.has(id), onclick }, name);
    };
    const end = () => {
      whispering = false;
      listeners.clear();
      draw();
      whisper.focus();
    };
    fill(whom, whispering && [h("span.soft", m("whisper_to")), room.members.map(chip), act("close", m("whisper_end"), end, "quiet")]);
    const { at, of } = room.chain ?? {};
    talk.replaceChildren(icon("chat"), of ? m("reply_of", { at, of }) : m("talk"));
  }
  on(events, "chat asked busy chain", draw);
  draw();

  return {
    element,
    focus: () => next.focus(),
    get speaker() {
      return speaker;
    },
    /** The ids of the chosen listeners, or undefined for a public line. */
    get audience() {
      return whispering && listeners.size ? [...listeners] : undefined;
    },
    wish(line, also, { isPlain = false, files = [] } = {}) {
      const found = isGroup(room) && !isPlain ? read(line, room.members) : { text: line };
      const audience = found.audience ?? this.audience;
      if (found.audience && !found.text.trim() && !files.length) {
        // The names alone choose the listeners of the next lines.
        listeners.clear();
        for (const id of found.audience) listeners.add(id);
        whispering = true;
        draw();
        room.announce(m("whispered", { names: list(found.audience.map(nameOf)) }));
        return null;
      }
      const body = { ...(found.text.trim() && { text: found.text }), ...(files.length && { files }), ...also };
      if ((body.text || body.files) && audience) body.audience = audience;
      if (!body.speaker) delete body.speaker;
      if (!also && speaker) body.speaker = speaker;
      return body;
    },
    /** The choice of the next speaker holds for one turn. */
    taken() {
      speaker = null;
      draw();
    },
  };
}
