/** Changing a message where it stands. What is typed is kept until it is saved or thrown away. */
import { api } from "../core/api.js";
import { attempt, explain } from "../core/dialogs.js";
import { h, settled } from "../core/dom.js";
import { kept } from "../core/store.js";
import { t } from "../core/words.js";
import { lead, told } from "./branches.js";

const say = (name) => t(`message.${name}`);

/** Put a textarea in the place of a message's text; `place` is the message's element. */
export function edit(message, room, place) {
  if (place.matches(".edited")) return;
  const { id, position } = message;
  const before = document.activeElement;
  const draft = kept.get(`edit.${id}`);
  const area = h("textarea.prose", { "aria-label": say("text"), value: draft ?? message.text });
  const keep = settled((text = area.value) => kept.set(`edit.${id}`, text === message.text ? null : text));
  const trouble = h("p.trouble", { role: "alert" });
  const leave = () => {
    keep.now();
    form.remove();
    place.classList.remove("edited");
    (before.isConnected ? before : place).focus();
  };
  const drop = () => {
    keep(message.text);
    leave();
  };
  const save = async (answers) => {
    if (room.busy) return (trouble.textContent = say("wait"));
    const followed = position < room.path.total - 1;
    if (area.value === message.text) {
      leave();
      if (answers && followed) await lead(room, position, id, false);
    } else {
      try {
        await api.patch(`/messages/${id}`, { text: area.value });
      } catch (error) {
        return (trouble.textContent = explain(error));
      }
      drop();
      await room.path.reload(position);
      if (followed && !answers) told(say("edited"), message, room);
    }
    if (answers) await room.take({});
  };
  const onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") leave();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) attempt(save);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const button = (label, onclick, kind = "") => h("button", { type: "button", class: kind, onclick }, label);
  const form = h("div.editing", { onkeydown }, area, trouble,
    h("small.help", {}, say(draft == null ? "editing" : "draft")),
    h("div.row", {},
      button(t("common.save"), () => attempt(save), "primary"),
      message.role === "user" && button(say("answer"), () => attempt(() => save(true))),
      button(t("common.cancel"), leave, "quiet"),
      draft != null && button(say("discard"), drop, "quiet danger")));
  area.addEventListener("input", () => keep());
  room.signal.addEventListener("abort", keep.now);
  addEventListener("pagehide", keep.now, { signal: room.signal });
  place.querySelector(".prose").after(form);
  place.classList.add("edited");
  area.focus();
}
