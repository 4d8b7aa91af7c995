/** Actions of one character or of several: favourites, copies, exports, deletion. */
import {
  act, api, attempt, characters, commit, deleting, download, h, more, problemOf, send, sendAll,
  sendLater, set, t, toast,
} from "../core.js";
import { say } from "./parts.js";

const FORMATS = ["png", "json", "charx"];
const MOST_EXPORTED = 500;
/** A name has at most 200 characters. */
const LONGEST = 180;

/** Mark a character as a favourite, or remove the mark. */
async function favour(item, is) {
  await api.patch(`/characters/${item.id}`, { is_favourite: is });
  item.is_favourite = is;
}

/** The button that marks a favourite. */
export function star(item) {
  const press = () => attempt(async () => {
    await favour(item, !item.is_favourite);
    set(button, { pressed: item.is_favourite });
    characters.put(item);
  });
  const button = act("star", say("favourite", item), press, "quiet star");
  return set(button, { pressed: item.is_favourite });
}

/** Mark several characters as favourites. */
export const favourAll = (items) => attempt(async () => {
  await sendAll(items, (item) => favour(item, true));
  characters.changed();
});

/** Copy a character. `made` gets the copy. */
export const duplicate = (item, made) => attempt(async () => {
  const name = say("copy_name", { name: item.name.slice(0, LONGEST) });
  await commit();
  const copy = await api.post(`/characters/${item.id}/duplicate`, { name });
  characters.changed();
  made(copy);
});

/** The menu items that export a card. `ready()` runs before. */
export const exports = ({ id }, ready) => FORMATS.map((format) => ({
  label: say("export", { format: format.toUpperCase() }),
  icon: "download",
  async act() {
    await ready?.();
    download(`/characters/${id}/export?format=${format}`);
  },
}));

/** The menu items that export several cards in a zip. */
export const exportsOf = (ids, told) => FORMATS.map((format) => ({
  label: say("export", { format: format.toUpperCase() }),
  icon: "download",
  act: () => attempt(async () => {
    for (let at = 0; at < ids().length; at += MOST_EXPORTED) {
      await fetchZip({ character_ids: ids().slice(at, at + MOST_EXPORTED), format }, told);
    }
  }),
}));

/** Let the browser save a zip of cards. `told(bytes)` is called while it arrives. */
async function fetchZip(json, told) {
  await commit();
  const response = await send("/characters/export", { method: "POST", json });
  if (!response.ok) throw await problemOf(response);
  const parts = [];
  let bytes = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { value, done } = await reader.read();
    if (done) break;
    parts.push(value);
    told((bytes += value.length));
  }
  told(null);
  const href = URL.createObjectURL(new Blob(parts, { type: "application/zip" }));
  h("a", { href, download: "characters.zip" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** The menu of a character in a list. */
export function menuOf(item) {
  const copied = (copy) => {
    const open = () => (location.hash = `#/characters/${copy.id}`);
    toast(say("copied", copy), { action: t("common.open"), onaction: open });
  };
  return more(say("more_of", item), [
    { label: say("duplicate"), icon: "copy", act: () => duplicate(item, copied) },
    null,
    ...exports(item),
    null,
    deleting(() => characters.remove(item.id, item.name)),
  ]);
}

/** Delete several characters. The deletion can be undone for some seconds. */
export function removeAll(items) {
  const paths = items.map(({ id }) => `/characters/${id}`);
  sendLater(say("deleted", { count: paths.length }), paths, { then: characters.changed });
}
