/**
 * The active path of a chat. It is loaded in pages, and only messages near the visible ones are
 * kept.
 */
import { isPending, on, problemOf, send } from "../core.js";

const PAGE = 40;
const AROUND = 200; // messages kept before and after the last requested ones

/** Messages by position, from 0 to `total` - 1. Sends "change" if a message changed. */
export class Path extends EventTarget {
  total = 0;
  #held = new Map();
  #reading = new Map();
  #near = [0, 0];
  #tag = "";
  #ask;

  constructor(chat, signal) {
    super();
    this.address = `/chats/${chat}/messages`;
    this.#ask = async (query, headers) => {
      const response = await send(this.address, { query, headers, signal });
      if (!response.ok && response.status !== 304) throw await problemOf(response);
      return response;
    };
    on(window, "pending", ({ detail }) => {
      // All messages are being deleted with the first one. Its request is told again after an undo or an error.
      if (isPending(this.address)) this.cut(0);
      else if (detail.includes(`DELETE ${this.address}`) && detail.length > 1) this.reload();
      const drawn = [...this.#held.values()].filter(({ id }) => detail.includes(`DELETE /messages/${id}`));
      this.#keep(drawn.map((message) => ({ ...message, removed: false })));
    }, signal);
  }

  /** Return the message at a position, or undefined if it is not loaded. */
  at(position) {
    return this.#held.get(position);
  }

  /** Return the last message that was not removed. */
  last() {
    let place = this.total - 1;
    while (this.at(place)?.removed) place--;
    return this.at(place);
  }

  async #read(before, limit = PAGE) {
    return (await (await this.#ask({ limit, before })).json()).items;
  }

  /** True if the path has changed since it was last loaded, or this was asked. */
  async hasChanged() {
    const response = await this.#ask({ limit: 1 }, { "If-None-Match": this.#tag });
    this.#tag = response.headers.get("ETag");
    return response.status !== 304;
  }

  /** Load the messages from one position up to another. */
  async load(from, to) {
    this.#near = [Math.max(0, from), Math.min(this.total, to)];
    const pages = new Set();
    for (let each = this.#near[0]; each < this.#near[1]; each++) {
      if (!this.#held.has(each)) pages.add(Math.floor(each / PAGE));
    }
    const reading = this.#reading;
    const read = async (page) => {
      if (!reading.has(page)) reading.set(page, this.#read((page + 1) * PAGE));
      const found = await reading.get(page).finally(() => reading.delete(page));
      // The tree may have changed in the meantime.
      if (reading === this.#reading) this.#keep(found.filter(({ position }) => position < this.total));
    };
    await Promise.all([...pages].map(read));
  }

  /** Load the path again after a change of the tree, and replace it at once. */
  async reload() {
    const reading = (this.#reading = new Map());
    const [first, last] = this.#near;
    const response = await this.#ask({ limit: PAGE });
    const { items } = await response.json();
    const newest = isPending(this.address) ? [] : items;
    const shown = newest[0]?.position > first && last > first ? await this.#read(last, last - first) : [];
    if (reading !== this.#reading) return;
    const before = this.#held;
    // An unchanged message keeps its object, so that it is not drawn again.
    const known = (message) => {
      const held = before.get(message.position);
      return JSON.stringify(held) === JSON.stringify(message) ? held : message;
    };
    this.#held = new Map();
    this.#tag = response.headers.get("ETag");
    this.total = newest.length && newest.at(-1).position + 1;
    this.#keep([...shown, ...newest].map(known));
  }

  /** Update a message, or append a new one. */
  put(message) {
    this.total = Math.max(this.total, message.position + 1);
    this.#keep([message]);
  }

  /** End the path before a position. `reload` restores the rest. */
  cut(position) {
    this.total = Math.min(this.total, position);
    this.#drop((each) => each >= position);
    this.#keep([]);
  }

  #keep(messages) {
    for (const message of messages) {
      // While the deletion can be undone, the message is drawn as removed.
      const isAway = isPending(`/messages/${message.id}`) && !message.removed;
      this.#held.set(message.position, isAway ? { ...message, removed: true } : message);
    }
    const [first, last] = this.#near;
    if (this.#held.size > 2 * AROUND) {
      this.#drop((each) => (each < first - AROUND || each > last + AROUND) && each < this.total - PAGE);
    }
    this.dispatchEvent(new Event("change"));
  }

  #drop(which) {
    for (const position of this.#held.keys()) if (which(position)) this.#held.delete(position);
  }
}
