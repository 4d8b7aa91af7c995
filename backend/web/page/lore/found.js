/** The activation mode of the entries of a new book, with one click to change it. */
import { api } from "../core/api.js";
import { attempt } from "../core/dialogs.js";
import { act, h } from "../core/dom.js";
import { t } from "../core/words.js";

export function foundBy({ id }, mode) {
  const says = h("small", { role: "status" }, t(`lore.found.${mode}`));
  if (mode === "keys") return says;
  const change = act("key", t("lore.found.change"), () =>
    attempt(async () => {
      await api.patch(`/lorebooks/${id}`, { mode: "keys" });
      says.textContent = t("lore.found.keys");
      change.remove();
    }), "quiet");
  return h("div.row", {}, says, change);
}
