/** The current world of a campaign: load, search, change. */
import { api, attempt, characters, complain, t, toast, UNDO_SECONDS } from "../core.js";
import { c } from "./parts.js";

/** The API's path for each kind of item. */
const PATHS = {
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
/** Lists that are read in addition to the state. The state contains the entities and the echoes. */
const LISTS = ["thread", "clock", "fact", "relation", "scene", "chapter", "term"];
const MOST = 500;

/** The title of an item. */
export const called = (item) => item.name ?? item.title ?? item.term ?? item.text ?? item.note ?? "";

/** Sends "change" after each change. "cut" contains the kinds with more items than were read. */
export class World extends EventTarget {
  /** The message that changes belong to, or null if they always apply. */
  message = () => null;
  cut = new Set();
  /** The cards that can play an entity in chats. */
  cards = [];
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

  /** Read the state, and the lists that have changed. */
  async read() {
    const asked = api.get(`${this.path}/state`, { signal: this.#signal });
    const [state, cards] = await Promise.all([asked, characters.all()]);
    this.cards = cards;
    if (state.version === this.state?.version) return;
    const pages = await Promise.all(LISTS.map((kind) => this.#page(kind)));
    const found = await Promise.all([...this.#sought.values()].map(async ([kind, q]) => [kind, await this.#page(kind, q)]));
    // Responses can arrive in the wrong order.
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

  /**
   * Search for items of a kind, in addition to the loaded ones, now and after each reload. There is
   * one search per `by`.
   */
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
  name = (id) => called(this.get(id) ?? this.cards.find((each) => each.id === id) ?? {});
  /** Entities of some kinds. */
  entities = (...kinds) => this.of("entity").filter((each) => kinds.includes(each.kind));

  /** The newest open scene. */
  get scene() {
    return this.get(this.state.scene?.id);
  }

  /** The current place: that of the scene, or of the player characters. */
  get place() {
    return this.scene?.location_id ?? this.entities("pc").find((each) => each.location_id)?.location_id;
  }

  /** True if the entity is in the current place. */
  isHere({ id, location_id: at }) {
    const present = this.scene?.present ?? [];
    return present.length ? present.includes(id) : at != null && at === this.place;
  }

  /**
   * Change an item, or the time of the world (kind "world"), at its known revision.
   * Changes run one after the other, so each uses the revision of the one before it.
   */
  change(kind, item, patch, revision = () => item.revision) {
    const path = kind === "world" ? this.path : `${this.path}/${PATHS[kind]}/${item.id}`;
    const made = this.#queue.then(async () => {
      const ifMatch = kind === "world" ? this.state.version : revision();
      // A lock belongs to the user, not to a message.
      const query = { message_id: "locked" in patch ? null : this.message() };
      const now = await api.patch(path, patch, { ifMatch, query, keepalive: true });
      if (kind !== "world") Object.assign(item, now);
      await this.#again();
      return now;
    });
    this.#queue = made.catch(() => {});
    return made;
  }

  /** Change an item with one click. If that fails, show its current state. */
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

  /** Delete an item, and offer to undo this. */
  async remove(kind, item) {
    const query = { message_id: this.message() };
    await api.delete(`${this.path}/${PATHS[kind]}/${item.id}`, undefined, { ifMatch: item.revision, query });
    await this.#again();
    const back = () => attempt(async () => {
      const { items } = await api.get(`${this.path}/changes`, { query: { limit: 50 } });
      const change = items.find(({ target, set }) => target.id === item.id && set.exists === false);
      await this.undo(change.id);
    });
    const name = called(item) || c(`kinds.${kind}`);
    toast(t("common.deleted", { name }), { action: t("common.undo"), onaction: back, seconds: UNDO_SECONDS });
  }

  /** Close a scene. A background job then summarises it. */
  async close(scene) {
    const query = { message_id: this.message() };
    await api.post(`${this.path}/scenes/${scene.id}/close`, undefined, { ifMatch: scene.revision, query });
    await this.#again();
  }

  /** Undo a change of the change log. */
  async undo(id) {
    const change = await api.post(`${this.path}/changes/${id}/undo`);
    await this.#again();
    return change;
  }

  /** Read the world again. The change is stored even if this fails. */
  async #again() {
    if (!this.#signal.aborted) await this.read().catch(complain);
  }
}
