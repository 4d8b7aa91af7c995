/** Pictures of characters and personas. Without one, the first letter of the name on a colour. */
import { api, h } from "../core.js";

const versions = new Map();

/** Report that the picture of an item has changed. */
export const repictured = (id) => versions.set(id, Date.now());

/** The picture beside a name. `kind`: "characters" or "personas"; `small`; `size`: "full". */
export function face(item, { kind = "characters", small = false, size = "thumbnail" } = {}) {
  const look = small ? "face small" : "face";
  const name = [...(item?.name?.trim() || "?")];
  const hue = (name.reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7) * 137) % 360;
  const letter = name.find((each) => /[\p{L}\p{N}]/u.test(each)) ?? name[0];
  const attributes = { class: look, vars: { hue }, "aria-hidden": "true" };
  const initial = () => h("span", attributes, letter.toUpperCase());
  if (!item?.has_avatar) return initial();
  const version = versions.get(item.id) ?? "";
  const src = api.url(`/${kind}/${item.id}/avatar?size=${size}&v=${version}`);
  const onerror = ({ target }) => target.replaceWith(initial());
  return h("img", { class: look, src, alt: "", loading: "lazy", onerror });
}
