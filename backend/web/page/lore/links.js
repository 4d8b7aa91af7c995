/** The links of a lorebook. */
import {
  act, api, attempt, characters, chats, chronicles, fill, h, lorebooks, personas, t,
} from "../core.js";

/** Return everything that can have a lorebook, by id: `{ kind, name }`. */
export async function holders() {
  const found = new Map();
  const read = async ([kind, store]) => {
    for (const { id, name, title } of await store.all()) {
      found.set(id, { kind, name: name ?? (title || t("chats.untitled")) });
    }
  };
  await Promise.all(Object.entries({ characters, personas, chats, chronicles }).map(read));
  return found;
}

/** The links of a lorebook, which can be added and removed. */
export function links(book) {
  const box = h("section.stack");
  const draw = async () => {
    const all = await holders();
    const has = new Set(Object.values(book.links).flat());
    const put = (id, is) =>
      attempt(async () => {
        const { kind } = all.get(id);
        const state = is && kind === "chats" ? { state: "linked" } : undefined;
        await api[is ? "put" : "delete"](`/${kind}/${id}/lorebooks/${book.id}`, state);
        book.links = (await api.get(`/lorebooks/${book.id}`)).links;
        lorebooks.changed();
        await draw();
      });
    const tags = [];
    const free = [];
    for (const [id, { kind, name }] of all) {
      if (has.has(id)) {
        const drop = act("close", t("lore.unlink", { name }), () => put(id, false), "quiet");
        tags.push(h("li.tag", name, drop));
      } else if (kind !== "chronicles") {
        const label = kind === "personas" ? t("library.personas") : t(`shell.${kind}`);
        free.push(h("option", { value: id }, `${label}: ${name}`));
      }
    }
    const choice = h("select", { label: t("lore.link_to") }, free);
    const add = act("link", t("lore.link"), () => put(choice.value, true));
    fill(
      box,
      h("h3", t("lore.links")),
      tags.length > 0 && h("ul.row", tags),
      free.length > 0 && h("div.row", h("span.grow", choice), add),
    );
  };
  attempt(draw);
  return box;
}
