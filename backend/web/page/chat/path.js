/** The active path of a chat, read in pages: only what lies near what is shown is kept. */
import { api } from "../core/api.js";

const PAGE = 40;
const AROUND = 200; // messages kept above and below those that were asked for last

/** Messages by position, 0 … `total` - 1. Says "change" when one changed. */
export class Path extends EventTarget {
  total = 0;
  #held = new Map();
  #reading = new Map();
  #near = [0, 0];
  #read;

  constructor(chat, signal) {
    super();
    this.#read = async (before, limit = PAGE) =>
      (await api.get(`/chats/${chat}/messages`, { query: { limit, before }, signal })).items;
  }

  /** The message at a position; undefined where it is not loaded. */
  at(position) {
    return this.#held.get(position);
  }

  last() {
    return this.at(this.total - 1);
  }

  /** Read what lies from one position to before another. */
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
      // Meanwhile the tree may have changed.
      if (reading === this.#reading) this.#keep(found.filter(({ position }) => position < this.total));
    };
    await Promise.all([...pages].map(read));
  }

  /** The tree changed: read it again, and replace what is shown at once. */
  async reload() {
    const reading = (this.#reading = new Map());
    const [first, last] = this.#near;
    const newest = await this.#read();
    const shown = newest[0]?.position > first && last > first ? await this.#read(last, last - first) : [];
    if (reading !== this.#reading) return;
    this.#held.clear();
    this.total = newest.length && newest.at(-1).position + 1;
    this.#keep([...shown, ...newest]);
  }

  /** Show a message in another state, or a new one at the end. */
  put(message) {
    this.total = Math.max(this.total, message.position + 1);
    this.#keep([message]);
  }

  /** Show the path as ended before a position; `reload` brings back what is there. */
  cut(position) {
    this.total = Math.min(this.total, position);
    this.#drop((each) => each >= position);
    this.#keep([]);
  }

  #keep(messages) {
    for (const message of messages) this.#held.set(message.position, message);
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
