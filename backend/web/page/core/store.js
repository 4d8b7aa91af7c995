/** What the page knows of who is signed in, and what it keeps in this browser. */
import { api } from "./api.js";

/** Who is signed in, or null, and what the server says of itself: set by main.js. */
export const session = { user: null, instance: null };

/** Values kept in this browser, by name; a browser that keeps nothing is fine, too. */
export const kept = {
  get(name, otherwise = null) {
    try {
      return JSON.parse(localStorage.getItem(`talekeeper.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      if (value == null) localStorage.removeItem(`talekeeper.${name}`);
      else localStorage.setItem(`talekeeper.${name}`, JSON.stringify(value));
    } catch {
      // Full, or forbidden: then it is not kept.
    }
  },
  /** Drop everything: somebody else may sign in here next. */
  clear() {
    for (const name of Object.keys(localStorage)) {
      if (name.startsWith("talekeeper.")) localStorage.removeItem(name);
    }
  },
};

/**
 * A list that several views show, read once and read again after `changed()`.
 * Whoever shows it listens for the event of its name at the window.
 */
function list(name, path) {
  let reading = null;
  const away = new Set();
  return {
    async all() {
      reading ??= api.all(path).catch((error) => {
        reading = null;
        throw error;
      });
      return (await reading).filter((item) => !away.has(item.id));
    },
    /** Leave an item out, or no longer: one whose deletion may still be undone. */
    hide(id, is = true) {
      if (is) away.add(id);
      else away.delete(id);
      dispatchEvent(new CustomEvent(name));
    },
    changed() {
      reading = null;
      dispatchEvent(new CustomEvent(name));
    },
    drop: () => (reading = null),
  };
}

export const characters = list("characters-changed", "/characters");
export const personas = list("personas-changed", "/personas");
export const chats = list("chats-changed", "/chats");
export const lorebooks = list("lorebooks-changed", "/lorebooks");
export const chronicles = list("chronicles-changed", "/chronicles");

/** Forget what was read: somebody else signed in. */
export function forget() {
  for (const each of [characters, personas, chats, lorebooks, chronicles]) each.drop();
}
