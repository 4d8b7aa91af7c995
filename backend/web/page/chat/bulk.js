/** The tools for several chats of the list. */
import { act, api, attempt, chats, fill, h, menu, pause, t, toast, undoable } from "../core.js";
import { askTags } from "./entry.js";
import { exports } from "./exports.js";

const DOWNLOAD_PAUSE = 400;

/** Send a request for each of the items. They go on when the page is closed. */
async function each(items, send) {
  const results = await Promise.allSettled(items.map(send));
  chats.changed();
  const failed = results.find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
}

const change = (items, changes) =>
  each(items, (item) => api.patch(`/chats/${item.id}`, changes(item), { keepalive: true }));

function remove(items) {
  const ids = items.map(({ id }) => id);
  undoable(t("chats.removed", { count: ids.length }), {
    hide: () => chats.hide(ids),
    act: (options) => each(ids, (id) => api.delete(`/chats/${id}`, undefined, options)),
    show: () => chats.hide(ids, false),
  });
}

async function archive(items, archived) {
  await change(items, () => ({ archived }));
  const onaction = () => attempt(() => change(items, () => ({ archived: !archived })));
  const said = t(archived ? "chats.archived" : "chats.unarchived", { count: items.length });
  toast(said, { action: t("common.undo"), onaction });
}

const tag = (items) =>
  askTags([], (tags) => change(items, (item) => ({ tags: [...new Set([...item.tags, ...tags])] })));

/** A menu of formats. Browsers drop downloads that follow each other too fast. */
const save = (items, { currentTarget }) =>
  menu(currentTarget, exports(items[0]).map((format, at) => ({
    ...format,
    async act() {
      for (const item of items) {
        exports(item)[at].act();
        await pause(DOWNLOAD_PAUSE);
      }
    },
  })));

/**
 * A bar with the number of selected chats, and what can be done with them.
 *
 * `chosen()` returns the selected chats, `all()` selects those that are shown, `end()` ends the
 * selection. `draw(isArchive)` shows the current state.
 */
export function bulk({ chosen, all, end }) {
  const then = (does) => () => attempt(async () => {
    await does(chosen());
    end();
  });
  const count = h("span.grow", { role: "status" });
  const [into, out] = [true, false].map((is) =>
    act("archive", t(is ? "chats.archive" : "chats.unarchive"), then((items) => archive(items, is))));
  const buttons = [
    into,
    out,
    act("tag", t("chats.tags"), () => tag(chosen())),
    act("download", t("common.export"), (event) => save(chosen(), event)),
    act("delete", t("common.delete"), then(remove), "danger"),
  ];
  const element = h("div.row.bulk", { role: "group", "aria-label": t("chats.selection"), hidden: true },
    count, h("button", { type: "button", onclick: all }, t("chats.all")), buttons,
    act("close", t("common.done"), end));
  const draw = (isArchive) => {
    const { length } = chosen();
    fill(count, t("chats.picked", { count: length }));
    for (const button of buttons) button.disabled = !length;
    into.hidden = isArchive;
    out.hidden = !isArchive;
  };
  return { element, draw };
}
