/** The tools for several chats of the list. */
import { act, api, attempt, chats, menu, sendAll, sendLater, t, toast } from "../core.js";
import { listSelection } from "../core/selection.js";
import { askTags, titleOf } from "./entry.js";
import { exports } from "./exports.js";

const change = (items, changes) =>
  sendAll(items, (item) => api.patch(`/chats/${item.id}`, changes(item), { keepalive: true })).finally(chats.changed);

function remove(items) {
  const paths = items.map(({ id }) => `/chats/${id}`);
  sendLater(t("chats.removed", { count: paths.length }), paths, { then: chats.changed });
}

async function archive(items, archived) {
  await change(items, () => ({ archived }));
  const onaction = () => attempt(() => change(items, () => ({ archived: !archived })));
  const said = t(archived ? "chats.archived" : "chats.unarchived", { count: items.length });
  toast(said, { action: t("common.undo"), onaction });
}

const tag = (items) =>
  askTags([], (tags) => change(items, (item) => ({ tags: [...new Set([...item.tags, ...tags])] })));

const save = (items, { currentTarget }) => menu(currentTarget, exports(...items));

/** The selection of chats in the list. */
export function bulk(list, options) {
  const then = (does) => () => attempt(async () => {
    await does(self.items);
    self.turn(false);
  });
  const [into, out] = [true, false].map((is) =>
    act("archive", t(is ? "chats.archive" : "chats.unarchive"), then((items) => archive(items, is))));
  const tools = [
    into,
    out,
    act("tag", t("chats.tags"), () => tag(self.items)),
    act("download", t("common.export"), (event) => save(self.items, event)),
    act("delete", t("common.delete"), then(remove), "danger"),
  ];
  const self = listSelection(list, {
    label: t("chats.selection"),
    counted: (count) => t("chats.picked", { count }),
    named: (chat) => t("chats.pick", { title: titleOf(chat) }),
    drawn([item = options.shown()[0]]) {
      into.hidden = Boolean(item?.archived_at);
      out.hidden = !into.hidden;
    },
    tools,
    ...options,
  });
  return self;
}
