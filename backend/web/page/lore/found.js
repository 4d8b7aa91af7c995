/** The activation mode of the entries of a new book, with one click to change it. */
import { act, api, attempt, h, t } from "../core.js";

export function foundBy({ id }, mode) {
  const says = h("small", { role: "status" }, t(`lore.found.${mode}`));
  if (mode === "keys") return says;
  const change = act("key", t("lore.found.change"), () =>
    attempt(async () => {
      await api.patch(`/lorebooks/${id}`, { mode: "keys" });
      says.textContent = t("lore.found.keys");
      change.remove();
    }), "quiet");
  return h("div.row", says, change);
}
