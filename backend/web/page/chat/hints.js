/** Hints about a chat, one at a time. A hint that was closed is not shown again. */
import { act, attempt, fill, h, icon, on, pageSettings, t } from "../core.js";

const LONG = 10;
const LONGER = 20;

/** The hints in order of precedence: when each one applies, and the panel that it is about. */
const HINTS = {
  branches: [({ path }) => path.last()?.sibling_count > 1],
  memory: [({ path, settings }) => path.total >= LONG && settings && !settings.chronicle_enabled, "settings"],
  groups: [({ path, members }) => path.total >= LONGER && members.length === 1, "members"],
  inspector: [({ path }) => path.total > 1 && path.last()?.role === "assistant", "context"],
};

export function hints(room) {
  const box = h("section.hint", { label: t("hints.title"), hidden: true });
  let isOver = false;
  const close = (name) => {
    // The next hint waits until the chat is opened again.
    isOver = true;
    box.hidden = true;
    room.composer.focus();
    attempt(() => pageSettings.save({ dismissed: [...(pageSettings.get().dismissed ?? []), name] }));
  };
  const draw = () => {
    if (isOver || room.busy) return;
    const closed = pageSettings.get().dismissed ?? [];
    const [name, [, panel]] = Object.entries(HINTS).find(([each, [applies]]) => !closed.includes(each) && applies(room)) ?? ["", []];
    box.hidden = !name;
    if (!name || box.dataset.name === name) return;
    box.dataset.name = name;
    const open = () => {
      close(name);
      room.open(panel);
    };
    fill(box, icon("spark"), h("p.grow", t(`hints.${name}`)),
      panel && h("button.quiet", { onclick: open }, t("hints.open")),
      act("check", t("hints.close"), () => close(name)));
  };
  on(room.events, "turn asked chat", draw);
  on(room.path, "change", draw);
  return box;
}
