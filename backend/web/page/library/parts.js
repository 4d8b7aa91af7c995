/** Building blocks of the library: creating and changing an item, and its picture. */
import { act, api, autoform, dialog, fill, h, sendform, t, tabs } from "../core.js";
import { picture } from "../core/picture.js";
import { face, repictured } from "./faces.js";

/** A text of the library. */
export const say = (name, values) => t(`library.${name}`, values);

/** A view of all items of a store, with actions and tabs. */
export const overview = (name, acts, ...parts) => {
  const places = ["characters", "personas"].map((each) => [each, say(each), `#/${each}`]);
  return h("div.page", h("header", h("h1", say(name)), acts), tabs(say("tabs"), name, places), parts);
};

/** Ask for one value. The dialog closes after `send(values)`. */
export const asking = (title, field, submit, send) =>
  dialog(title, (close) => {
    const sent = async (values) => close(await send(values));
    return sendform({ fields: [field], submit, send: sent }).element;
  });

/** The field of a name. */
export const NAME = { name: "name", label: t("common.name"), required: true, most: 200, wide: true };

/** Ask for the name of a new item and create it. `made` gets the item. */
export const naming = (store, title, made) =>
  asking(title, NAME, say("make"), async (values) => {
    const item = await api.post(store.path, values);
    store.changed();
    made(item);
  });

/** Change an item at its known revision. */
export async function change(store, item, patch, signal) {
  const options = { ifMatch: item.revision, keepalive: true };
  Object.assign(item, await api.patch(`${store.path}/${item.id}`, patch, options));
  if (signal.aborted) store.changed();
  else store.drop();
}

/** A form for an item. `save(changes)` stores the changes of `value`. */
export const editing = (store, item, groups, signal, told, value = { ...item }, patch = (changes) => changes) =>
  autoform({
    groups,
    value,
    signal,
    async save(changes) {
      await change(store, item, patch(changes), signal);
      if (!signal.aborted) told();
      return { ...item };
    },
  });

/** The picture of an item. It is replaced with a click or by dropping another one. */
export function portrait(store, item, signal) {
  const box = h("div.portrait");
  const draw = () => {
    const is = own.has();
    const shown = face({ ...item, has_avatar: is }, { kind: store.path.slice(1), size: "full" });
    fill(
      box,
      h("button.poster", { onclick: own.choose }, shown, h("small", say(is ? "picture_other" : "picture_add"))),
      is && act("delete", say("picture_remove"), own.remove, "quiet"),
    );
  };
  const changed = (is) => {
    item.has_avatar = is;
    repictured(item.id);
    store.changed();
    draw();
  };
  const own = picture(`${store.path}/${item.id}/avatar`, box, { has: () => item.has_avatar, draw, changed, removed: say("picture_removed"), signal });
  draw();
  return box;
}
