/** A campaign's world as it is now: read, told of, changed. */
import { api } from "../core/api.js";
import { attempt, complain, toast } from "../core/dialogs.js";
import { t } from "../core/words.js";
import { c } from "./parts.js";

/** Kinds of items, and where the API has them. */
export const PATHS = {
  entity: "entities",
  thread: "threads",
  clock: "clocks",
  fact: "facts",
  relation: "relations",
  scene: "scenes",
  chapter: "chapters",
  echo: "echoes",
  term: "glossary",
};
/** What is read beside the state, which has the entities and the echoes. */
const LISTS = ["thread", "clock", "fact", "relation", "scene", "chapter", "term"];
const MOST = 500;

/** What an item is called. */
export const called = (item) => item.name ?? item.title ?? item.term ?? item.text ?? item.note ?? "";

/** Says "change" when something in it did, and "cut" has the kinds of which there is more. */
export class World extends EventTarget {
  /** The message that what is changed here belongs to, and counts with; none: it counts always. */
  message = () => null;
  cut = new Set();
  #lists = {};
  #byId = new Map();
  #sought = new Map();
  #queue = Promise.resolve();
  #signal;

  constructor(id, signal) {
    super();
    this.path = `/campaigns/${id}`;
    this.id = id;
    this.#signal = signal;
  }

  /** Read what changed since it was read last. */
  async read() {
    const state = await api.get(`${this.path}/state`, { signal: this.#signal });
    if (state.version === this.state?.version) return;
    const pages = await Promise.all(LISTS.map((kind) => this.#page(kind)));
    const found = await Promise.all([...this.#sought.values()].map(async ([kind, q]) => [kind, await this.#page(kind, q)]));
    // Of two that were under way, the one that was asked for first may answer last.
    if (state.version < this.state?.version) return;
    this.#lists = { entity: state.entities, echo: state.echoes };
    this.cut = new Set(Object.keys(this.#lists).filter((kind) => state.more[PATHS[kind]]));
    LISTS.forEach((kind, at) => {
      this.#lists[kind] = pages[at].items;
      if (pages[at].next) this.cut.add(kind);
    });
    this.state = state;
    for (const [kind, { items }] of found) this.#join(kind, items);
    this.#tell();
  }

  /** Read what has these words in it, beside what was read, now and whenever that is read again: one search `by` each name. */
  async find(by, kind, q) {
    this.#sought.set(by, [kind, q]);
    const { items } = await this.#page(kind, q);
    this.#join(kind, items);
    this.#tell();
  }

  #page(kind, q) {
    return api.get(`${this.path}/${PATHS[kind]}`, { query: { q, limit: MOST }, signal: this.#signal });
  }

  #join(kind, items) {
    const known = new Set(this.#lists[kind].map(({ id }) => id));
    this.#lists[kind].push(...items.filter(({ id }) => !known.has(id)));
  }

  #tell() {
    this.#byId = new Map(Object.values(this.#lists).flat().map((item) => [item.id, item]));
    this.dispatchEvent(new Event("change"));
  }

  of = (kind) => this.#lists[kind] ?? [];
  get = (id) => this.#byId.get(id);
  name = (id) => (this.get(id) ? called(this.get(id)) : "");
  /** Entities of some kinds. */
  entities = (...kinds) => this.of("entity").filter((each) => kinds.includes(each.kind));

  /** The scene that is open, the newest of several. */
  get scene() {
    return this.get(this.state.scene?.id);
  }

  /** The place where the story is: the scene's, or that of the players' characters. */
  get place() {
    return this.scene?.location_id ?? this.entities("pc").find((each) => each.location_id)?.location_id;
  }

  /** Whether somebody is where the story is. */
  isHere({ id, location_id: at }) {
    const present = this.scene?.present ?? [];
    return present.length ? present.includes(id) : at != null && at === this.place;
  }

  /**
   * Change an item, or the world's own time (kind "world"), against the revision that is known when
   * its turn comes: one change follows the other, each on what the one before it made.
   */
  change(kind, item, patch, revision = () => item.revision) {
    const path = kind === "world" ? this.path : `${this.path}/${PATHS[kind]}/${item.id}`;
    const made = this.#queue.then(async () => {
      const ifMatch = kind === "world" ? this.state.version : revision();
      // A lock is the user's, whatever is told.
      const query = { message_id: "locked" in patch ? null : this.message() };
      const now = await api.patch(path, patch, { ifMatch, query, keepalive: true });
      if (kind !== "world") Object.assign(item, now);
      await this.#again();
      return now;
    });
    this.#queue = made.catch(() => {});
    return made;
  }

  /** Change an item by one press: where that fails, what is there now is shown. */
  async press(kind, item, patch) {
    try {
      await this.change(kind, item, patch);
    } catch (error) {
      complain(error);
      await attempt(() => this.#again());
    }
  }

  async add(kind, values) {
    const query = { message_id: this.message() };
    const made = await api.post(`${this.path}/${PATHS[kind]}`, values, { query });
    await this.#again();
    return made;
  }

  /** Delete an item, and offer to undo that. */
  async remove(kind, item) {
    const query = { message_id: this.message() };
    await api.delete(`${this.path}/${PATHS[kind]}/${item.id}`, undefined, { ifMatch: item.revision, query });
    await this.#again();
    const back = () => attempt(async () => {
      const { items } = await api.get(`${this.path}/changes`, { query: { limit: 50 } });
      const change = items.find(({ target, set }) => target.id === item.id && set.exists === false);
      await this.undo(change.id);
    });
    toast(t("common.deleted", { name: called(item) || c(`kinds.${kind}`) }), { action: t("common.undo"), onaction: back });
  }

  /** End a scene: what happened in it is summed up after that. */
  async close(scene) {
    const query = { message_id: this.message() };
    await api.post(`${this.path}/scenes/${scene.id}/close`, undefined, { ifMatch: scene.revision, query });
    await this.#again();
  }

  /** Let a change of the ledger count no longer. */
  async undo(id) {
    const change = await api.post(`${this.path}/changes/${id}/undo`);
    await this.#again();
    return change;
  }

  /** What was changed is changed, whether it can be read again now or not. */
  async #again() {
    if (!this.#signal.aborted) await this.read().catch(complain);
  }
}
