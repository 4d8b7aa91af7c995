/** Settings of memory: the search, the embedding model, and the agent's rights. */
import { api, autoform, h, t } from "../core.js";
import { among, at, numbers, patchOf } from "../chat/fields.js";
import { embedding } from "../models/tasks.js";
import { frame, part } from "./parts.js";

const PATH = "/me/settings";

/** Route: #/memory-settings */
export default async function ({ signal, title }) {
  let [settings, models, providers] = await Promise.all([
    api.get(PATH, { signal }), api.all("/models", { signal }), api.all("/providers", { signal }),
  ]);
  const onOrOff = (name) => among(name, null, true, false);
  const fields = [
    embedding(providers, models),
    onOrOff("memory.enabled"),
    onOrOff("memory.rephrase"),
    ...numbers("memory", { max_items: [0, 200, 40], min_relevance: [0, 1] }),
    onOrOff("enrichment.may_edit_lore"),
  ];
  const value = Object.fromEntries(fields.map(({ name }) => [name, at(settings, name) ?? null]));
  const save = async (changes) => {
    settings = await api.patch(PATH, patchOf(changes, settings), { keepalive: true });
  };
  return frame("memory-settings", title,
    h("p.row.lead",
      h("a", { href: "#/memory/status" }, t("memory.status.title")),
      h("a", { href: "#/chronicles" }, t("memory.chronicles"))),
    part("memory_search", autoform({ groups: [{ fields }], value, signal, save }).element));
}
