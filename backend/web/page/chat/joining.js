/** The dialog for a character that joins or returns: it knows nothing, or is told what happened. */
import { api, commit, control, dialog, explain, fill, h, t } from "../core.js";
import { enter, m } from "./cast.js";

/** Ask what a character is told, and let it enter. A model drafts the text if it is needed. */
export function joining(room, { id, name }, isNew = false) {
  const quit = new AbortController();
  const asked = dialog(m(isNew ? "join_title" : "return_title", { name }), (close) => {
    const area = control({ kind: "area", name: "briefing", label: m("briefing", { name }), help: m("briefing_help", { name }), count: true, most: 20_000, rows: 8 });
    const state = h("p.soft.row", { role: "status" });
    const trouble = h("p.trouble", { role: "alert" });
    const told = h("div.stack", { hidden: true }, state, area.element);
    let drafting = null;

    const draft = async () => {
      drafting = new AbortController();
      const signal = AbortSignal.any([quit.signal, drafting.signal]);
      const stop = h("button.quiet", { onclick: () => drafting.abort() }, m("draft_stop"));
      fill(state, h("progress", { label: m("drafting") }), m("drafting"), stop);
      const before = area.read();
      const button = (label) => h("button", { onclick: draft }, label);
      try {
        await commit();
        const { text } = await api.post(`/chats/${room.chat.id}/members/${id}/briefing`, undefined, { signal });
        // What the user has typed in the meantime is kept.
        if (area.read() === before) area.write(text);
        fill(state, button(m("draft_again")));
      } catch (error) {
        const failed = error.name !== "AbortError" && h("span.grow", { role: "alert" }, m("draft_failed"), h("small.help", explain(error)));
        fill(state, failed, button(t("common.retry")));
      }
      drafting = null;
    };

    const kinds = ["nothing", "told"].map((kind) => {
      const onchange = () => {
        told.hidden = kind === "nothing";
        if (kind === "told" && !drafting && !area.read()) draft();
      };
      const checked = kind === "nothing";
      const radio = h("input", { type: "radio", name: "knows", value: kind, checked, onchange, autofocus: checked });
      return h("label.row", radio, h("span.grow", m(`${kind}_${isNew ? "new" : "back"}`, { name })));
    });
    const button = h("button.primary", { type: "submit" }, m(isNew ? "join" : "return_now"));
    const onsubmit = async (event) => {
      event.preventDefault();
      const briefing = told.hidden ? undefined : area.read().trim();
      area.fault(briefing === "" ? m("briefing_empty") : "");
      if (briefing === "") return area.input.focus();
      trouble.textContent = "";
      button.disabled = true;
      try {
        close(await enter(room, id, { presence: "present", briefing }));
      } catch (error) {
        trouble.textContent = explain(error);
      }
      button.disabled = false;
    };
    return h("form.stack", { onsubmit },
      h("fieldset.stack", h("legend.unseen", m("knows", { name })), kinds),
      told, trouble,
      h("footer", h("button", { onclick: () => close() }, t("common.cancel")), button));
  });
  return asked.finally(() => quit.abort());
}
