/** Editing of a message in place. The draft is kept until it is saved or discarded. */
import { api, explain, fill, h, kept, t, undoable } from "../core.js";
import { lead, say, told } from "./branches.js";
import { worded, wording } from "./pictures.js";

/** Replace the text of a message with a textarea. `place` is the message's element. */
export function edit(message, room, place) {
  if (place.matches(".edited")) return;
  const { id, position } = message;
  // Macros are edited in the form in which they were typed.
  const text = message.typed ?? wording(message);
  const name = `edit.${id}`;
  const draft = kept.get(name);
  const before = document.activeElement;
  const oninput = () => kept.set(name, area.value === text ? null : area.value);
  const area = h("textarea.prose", { label: say("text"), value: draft ?? text, oninput });
  const trouble = h("p.trouble", { role: "alert" });
  const leave = () => {
    form.remove();
    place.classList.remove("edited");
    (before.isConnected ? before : place).focus();
  };
  const drop = () => {
    kept.set(name, null);
    leave();
  };
  const discard = () => {
    const words = kept.get(name);
    undoable(say("discarded"), {
      hide: drop,
      act() {},
      show() {
        kept.set(name, words);
        if (place.isConnected) edit(message, room, place);
      },
    });
  };
  const save = async (answers) => {
    if (area.readOnly) return;
    if (room.busy) return fill(trouble, say("wait"));
    const followed = position < room.path.total - 1;
    const changed = area.value !== text;
    area.readOnly = true;
    try {
      if (changed) await api.patch(`/messages/${id}`, { text: worded(area.value, message) });
      else if (answers && followed) await lead(room, id, false);
    } catch (error) {
      area.readOnly = false;
      return fill(trouble, explain(error));
    }
    drop();
    if (changed) await room.path.reload();
    if (answers) await room.take({});
    else if (changed && followed) told(say("edited"), message, room);
  };
  const onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") leave();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const button = (label, onclick, look = "") => h("button", { class: look, onclick }, label);
  const form = h("div.editing", { onkeydown }, area, trouble,
    h("small.help", say(draft == null ? "editing" : "draft")),
    h("div.row",
      button(t("common.save"), () => save(), "primary"),
      message.role === "user" && button(say("answer"), () => save(true)),
      button(t("common.cancel"), leave, "quiet"),
      draft != null && button(say("discard"), discard, "quiet danger")));
  place.querySelector(".prose").after(form);
  place.classList.add("edited");
  area.focus();
  form.scrollIntoView({ block: "nearest" });
}
