/** Versions of a campaign: compare with the present, and restore. */
import { act, api, attempt, fill, h, icon, pend, sendLater, t, timed } from "../core.js";
import { c, label } from "./parts.js";
import { said, whose } from "./said.js";
import { World } from "./world.js";

export default async function (it, { signal, tell }) {
  const world = new World(it.id, signal);
  await world.read();
  const list = h("ol.list", { label: c("tabs.versions") });
  const more = h("button", { onclick: () => attempt(() => load(more.value)) }, t("common.more"));
  const load = async (before) => {
    const { items, next } = await api.get(`${world.path}/versions`, { query: { before }, signal });
    if (!before) fill(list);
    list.append(...items.map((each) => row(each, world, restored)));
    more.value = next ?? "";
    more.hidden = next == null;
  };
  const restored = async (view) => {
    Object.assign(it, view);
    tell();
    await Promise.all([world.read(), load()]);
  };
  await load();
  return h("section.stack", h("p.soft", c("versions_help")), list, more);
}

/** A version in the list. Unfolded, it shows the changes that restoring it would make. */
function row({ version, actor, changes: count, created_at: when }, world, restored) {
  const box = h("div.compared");
  const path = `${world.path}/restore`;
  const restore = () => sendLater(c("restored", { version }), path, { method: "POST", json: { version }, then: restored });
  const open = ({ target }) => target.open && attempt(async () => {
    const { differences, more } = await api.get(`${world.path}/comparison`, { query: { version } });
    fill(box, differences.length
      ? [h("ul", differences.map((each) => difference(each, world))),
        more > 0 && h("p.soft", c("more_differ", { count: more })),
        pend(act("undo", c("restore_named", { version }), restore), path, "POST")]
      : h("p.soft", c("as_now")));
  });
  return h("li", h("details.grow", { ontoggle: open },
    h("summary.row",
      h("strong", c("version", { version })),
      h("span.soft.grow", `${whose(actor)} · ${c("changes", { count })}`),
      timed(when, "soft")),
    box));
}

/** Compare two states of an item field by field. */
function difference({ target, then, now }, world) {
  const name = target.kind === "world" ? c("kinds.world") : target.name || c(`kinds.${target.kind}`);
  const fields = [...new Set(Object.keys({ ...then, ...now }))].flatMap((key) => {
    const [was, is] = [then?.[key], now?.[key]];
    if (key !== "attributes" && key !== "flags") return [[key, was, is]];
    return [...new Set(Object.keys({ ...was, ...is }))].map((member) => [`${key}.${member}`, was?.[member], is?.[member]]);
  });
  const changed = fields.filter(([, was, is]) => JSON.stringify(was) !== JSON.stringify(is));
  return h("li",
    h("strong", name),
    then && now
      ? h("dl", changed.map(([key, was, is]) => [
          h("dt", label(key)),
          h("dd", h("del", said(key, was, world)), icon("right"), h("ins", said(key, is, world))),
        ]))
      : h("p.soft", c(then ? "deleted_since" : "made_since")));
}
