/** The session, and values that the page stores in this browser. */
import { api } from "./api.js";
import { isPending, sendLater } from "./dialogs.js";
import { on } from "./dom.js";
import { speaks, t } from "./words.js";

/**
 * The signed-in user, or null, the server's description, and the settings of the page. main.js sets
 * them.
 */
export const session = { user: null, instance: null, page: null };

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

/**
 * Settings of the page. The account has them; a copy in this browser is used for the first paint.
 * `get()` returns them, with absent members for defaults. `save(patch)` merges a patch (null: the
 * default), stores it, and applies it. The event "page-changed" at the window reports a change.
 */
export const pageSettings = {
  get: () => session.page ?? {},
  put(page = {}) {
    session.page = page;
    kept.set("page", page);
    const { dismissed, monthly_limit, ...look } = page;
    device.set("look", look);
    dispatchEvent(new CustomEvent("look", { detail: look }));
    dispatchEvent(new CustomEvent("page-changed"));
  },
  /** Read the settings of the account. Only the first time in this browser takes a wait. */
  async load() {
    const known = kept.get("page");
    // A change that was saved in the meantime is newer than the response.
    const reading = api.get("/me/settings").then(({ page }) => session.page === known && this.put(page)).catch(() => {});
    session.page = known;
    if (known) this.put(known);
    else await reading;
    // The texts of another language are loaded with the page.
    if (!speaks(this.get().language) && device.get("look")?.language) location.reload();
  },
  async save(page) {
    this.put((await api.patch("/me/settings", { page }, { keepalive: true })).page);
    return session.page;
  },
};

/**
 * A list that several views show. It is read once, and again after `changed()`.
 * A view listens for the event with its name at the window.
 */
function list(name, sort = (items) => items) {
  const path = `/${name}`;
  const tell = () => dispatchEvent(new CustomEvent(`${name}-changed`));
  on(window, "pending", ({ detail }) => detail.some((each) => each.startsWith(`DELETE ${path}/`)) && tell());
  let known = new Map();
  /** An unchanged item keeps its object, so that it is not drawn again. */
  const same = (item) => {
    const before = known.get(item.id);
    return JSON.stringify(before) === JSON.stringify(item) ? before : item;
  };
  let reading = null;
  const store = {
    path,
    async all() {
      reading ??= api.all(path).then((found) => {
        const items = found.map(same);
        known = new Map(items.map((item) => [item.id, item]));
        return items;
      }).catch((error) => {
        reading = null;
        throw error;
      });
      return sort((await reading).filter(({ id }) => !isPending(`${path}/${id}`)));
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
    /** Delete an item. The deletion can be undone for some seconds. `then` runs after it. */
    remove: (id, title, then) =>
      sendLater(t("common.deleted", { name: title }), `${path}/${id}`, {
        then() {
          store.changed();
          then?.();
        },
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
export const backgrounds = list("backgrounds");
