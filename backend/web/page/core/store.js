/** The session, and values that the page stores in this browser. */
import { api } from "./api.js";
import { undoable } from "./dialogs.js";
import { t } from "./words.js";

/** The signed-in user, or null, and the server's description. main.js sets them. */
export const session = { user: null, instance: null };

/** Values in local storage, by name. Works without local storage. */
function keeping(prefix) {
  return {
    get(name, otherwise = null) {
      try {
        return JSON.parse(localStorage.getItem(prefix() + name)) ?? otherwise;
      } catch {
        return otherwise;
      }
    },
    set(name, value) {
      try {
        if (value == null) localStorage.removeItem(prefix() + name);
        else localStorage.setItem(prefix() + name, JSON.stringify(value));
      } catch {
        // Storage is full or forbidden: the value is not kept.
      }
    },
    names: () => Object.keys({ ...localStorage }).flatMap((key) => key.split(prefix())[1] ?? []),
  };
}

/** Values of the signed-in account. Other accounts in this browser do not see them. */
export const kept = keeping(() => `talekeeper.${session.user.id}.`);

const device = keeping(() => "talekeeper.");

/** The theme in this browser: "auto", "light" or "dark". */
export const theme = {
  get: () => device.get("theme", "auto"),
  set(chosen) {
    device.set("theme", chosen);
    document.documentElement.dataset.theme = chosen;
    // The browser's own bars use the theme's colour.
    for (const meta of document.querySelectorAll("meta[data-theme]")) {
      const own = meta.dataset.theme;
      meta.media = { auto: `(prefers-color-scheme: ${own})`, [own]: "all" }[chosen] ?? "not all";
    }
  },
};

/**
 * A list that several views show. It is read once, and again after `changed()`.
 * A view listens for the event with its name at the window.
 */
function list(name, sort = (items) => items) {
  const path = `/${name}`;
  const tell = () => dispatchEvent(new CustomEvent(`${name}-changed`));
  const away = new Set();
  let reading = null;
  const store = {
    path,
    async all() {
      reading ??= api.all(path).catch((error) => {
        reading = null;
        throw error;
      });
      return sort((await reading).filter((item) => !away.has(item.id)));
    },
    /** Hide or show an item, or several, whose deletion can still be undone. */
    hide(ids, is = true) {
      for (const id of [ids].flat()) away[is ? "add" : "delete"](id);
      tell();
    },
    /** Replace an item with its current version. */
    put(item) {
      reading = reading?.then((items) => items.map((each) => (each.id === item.id ? item : each)));
      tell();
    },
    changed() {
      reading = null;
      tell();
    },
    drop: () => (reading = null),
    /** Delete an item. The deletion can be undone for some seconds. */
    remove: (id, title) =>
      undoable(t("common.deleted", { name: title }), {
        hide: () => store.hide(id),
        act: async (options) => {
          await api.delete(`${path}/${id}`, undefined, options);
          store.changed();
        },
        show: () => store.hide(id, false),
      }),
  };
  return store;
}

/** The time at which a chat was last continued. A copy is newer than its messages. */
export const usedAt = ({ created_at: made, last_message_at: last }) => (last > made ? last : made);

/** Pinned chats first, then the latest. */
const latest = (items) => items.sort((one, other) =>
  Boolean(other.pinned_at) - Boolean(one.pinned_at) || (usedAt(one) < usedAt(other) ? 1 : -1));

export const characters = list("characters");
export const personas = list("personas");
export const chats = list("chats", latest);
export const lorebooks = list("lorebooks");
export const chronicles = list("chronicles");
export const campaigns = list("campaigns");
