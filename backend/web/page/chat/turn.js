/** Turns: send a line and stream the reply, across interrupted connections. */
import {
  api, commit, complain, events, explained, on, pause, Problem, problemOf, remedy, send, settled, t,
} from "../core.js";
import { windowLink } from "../models/picker.js";

const SILENCE = 40_000; // the server sends a heartbeat every 15 seconds
const LONGEST_WAIT = 10_000;

// crypto.randomUUID exists only in secure contexts.
const newId = () =>
  "00000000-0000-4000-8000-000000000000".replaceAll("0", () =>
    (crypto.getRandomValues(new Uint8Array(1))[0] & 15).toString(16),
  );

/** Append the rest of a text that may overlap with its end. */
function joined(before, more) {
  let shared = more.length;
  while (!before.endsWith(more.slice(0, shared))) shared--;
  return before + more.slice(shared);
}

/** Return the first characters of a text. Like the server, it counts code points. */
const first = (text, length) => [...text].slice(0, length).join("");

/**
 * @returns {{take, takeUp, stop, choose, abandon}} The turns of a room, one at a time. The room is
 *   `busy` while a turn runs, or `waiting` with the question of a turn, which `choose(option)`
 *   answers.
 */
export function turns(room) {
  const { path, signal } = room;
  let running = null;
  let untaken = {};
  const tell = (name) => room.events.dispatchEvent(new Event(name));
  const occupy = (turn) => {
    running = turn;
    room.busy = Boolean(turn);
    tell("busy");
  };

  /** Follow the events of a turn until it ends, and resume after interruptions. */
  async function follow(turn) {
    const link = new AbortController();
    const alive = settled(() => link.abort(), SILENCE);
    try {
      const { id, stream, begun, heard, body, quit } = turn;
      const [address, request] = begun
        ? [`/turns/${stream}/events`, { headers: { "Last-Event-ID": heard } }]
        : [`/chats/${room.chat.id}/turns`, { method: "POST", json: { ...body, turn_id: id } }];
      const answer = await send(address, { ...request, signal: AbortSignal.any([link.signal, quit.signal]) });
      if (!answer.ok) throw await problemOf(answer);
      for await (const event of events(answer, alive)) {
        calm(turn);
        await hear(turn, event);
        turn.heard = event.id;
      }
      turn.over ||= Boolean(turn.asks);
    } catch (error) {
      if (!link.signal.aborted || turn.quit.signal.aborted) passing(turn, error);
    } finally {
      alive.drop();
    }
  }

  /** The connection to the server works again. */
  function calm(turn) {
    if (turn.wait) room.composer.notice();
    turn.wait = 0;
  }

  /** Show the work that a queued turn waits for; null once it no longer waits. */
  function queue(turn, work) {
    if (work || turn.queued) room.composer.notice(work && t(`chat.waits.${work}`));
    turn.queued = work;
  }

  /** Throw an error again, unless it is a failure of the connection. */
  function passing(turn, error) {
    const isOnTheWay = turn.begun || !error.slug || error.slug === "server-stopping";
    if (!error.isOffline && !(error.status >= 500 && isOnTheWay)) throw error;
  }

  /** Replies that follow each other by themselves are turns in one stream: begin with the next. */
  function begin(turn, { turn_id: id, number: at, left }) {
    if (id !== turn.id) Object.assign(turn, { id, kind: null, reply: null, text: "", thinking: "", over: false, taken: false });
    turn.follows = left > 0;
    room.chain = at + left > 1 ? { at, of: at + left } : null;
    tell("chain");
  }

  /** Show the stored reply of a turn whose stream goes on with the next one. */
  async function finish({ reply }) {
    if (!reply) return;
    path.put(await api.get(`/messages/${reply.id}`, { signal }));
    room.announce(t("members.spoke", { name: reply.author }));
  }

  async function hear(turn, { event, data }) {
    if (event === "speaker.started") begin(turn, data);
    else if (event === "turn.started") {
      turn.begun = true;
      untaken = {};
      turn.ontaken?.();
      turn.ontaken = null;
      if (turn.kind !== "impersonate") await place(turn, [data.user_message_id, data.reply_id]);
    } else if (event === "context.ready") {
      room.totals = data.totals;
      tell("chat");
    } else if (event.endsWith(".delta")) {
      const [kind] = event.split(".");
      turn[kind] = turn.partly?.delete(kind) ? joined(turn[kind], data.text) : turn[kind] + data.text;
      turn.frame ||= requestAnimationFrame(() => grow(turn));
    } else if (event.endsWith(".reset")) {
      const [kind] = event.split(".");
      turn[kind] = first(turn[kind], data.length);
      turn.partly?.delete(kind);
      grow(turn);
    } else if (event === "model.busy") {
      queue(turn, data.work);
      return;
    } else if (/completed|failed/.test(event)) {
      turn.over = true;
      if (turn.follows && data.state === "completed") await finish(turn);
    }
    // Any later event means that the question was answered.
    turn.asks = event === "turn.awaiting_choice" ? data : null;
    if (!event.endsWith(".delta")) {
      room.events.dispatchEvent(new CustomEvent("played", { detail: { event, data } }));
    }
  }

  /** Show the messages of a turn at the end of the path. */
  async function place(turn, ids) {
    const read = async (id) => id && (await api.get(`/messages/${id}`, { signal }));
    const [line, reply] = await Promise.all(ids.map(read)).catch((error) => {
      // The turn failed before it stored a message.
      if (error.status !== 404) throw error;
      return [];
    });
    // The path may have changed in another window.
    const { position, parent_id: parent } = line ?? reply ?? {};
    if (position && path.at(position - 1)?.id !== parent) await path.reload();
    if (line) path.put(line);
    if (line && turn.taken && room.composer.text === line.text) room.composer.text = "";
    if (!reply) return;
    const before = turn.kind === "continue" ? (path.at(reply.position) ?? reply) : {};
    if (turn.taken && before.text) turn.partly = new Set(["text", "thinking"]);
    Object.assign(turn, { reply, text: before.text ?? "", thinking: before.thinking ?? "" });
    path.cut(reply.position);
    grow(turn);
  }

  function grow(turn) {
    const { over, reply, text, thinking } = turn;
    turn.frame = 0;
    if (over) return;
    if (turn.kind === "impersonate") room.composer.text = turn.before + text;
    else if (reply) path.put({ ...reply, text, thinking, status: "streaming" });
  }

  /** Replace the streamed text with the stored messages. */
  async function conclude(turn) {
    const view = await api.get(`/turns/${turn.id}`, { signal });
    wait(view);
    if (view.text) room.composer.text = turn.before + view.text;
    if (view.reply) {
      path.put(view.reply);
      room.announce(`${view.reply.author}: ${view.reply.text || t("chat.only_thoughts")}`);
    } else if (turn.kind !== "impersonate") await path.reload();
    return view;
  }

  async function run(turn) {
    const quit = new AbortController();
    const before = room.composer.text && `${room.composer.text}\n`;
    Object.assign(turn, { stream: turn.id, heard: 0, text: "", thinking: "", wait: 0, before, quit });
    wait(null);
    on(signal, "abort", () => quit.abort());
    occupy(turn);
    if (turn.body) room.composer.notice();
    let view;
    try {
      while (!view) {
        if (!turn.over) await follow(turn);
        if (turn.over) view = await conclude(turn).catch((error) => passing(turn, error));
        if (view) break;
        room.composer.notice(t("chat.lost"));
        turn.wait = Math.min(LONGEST_WAIT, turn.wait * 2 || 500);
        const online = new Promise((go) => addEventListener("online", go, { once: true }));
        await Promise.race([pause(turn.wait, quit.signal), online]);
        quit.signal.throwIfAborted();
      }
    } finally {
      calm(turn);
      queue(turn, null);
      room.chain = null;
      occupy(null);
    }
    // The connection may have been lost between two turns.
    if (turn.follows && view.state === "completed") takeUp(await latest());
    ended(view, turn.body);
    tell("turn");
    return view;
  }

  /** Show the question of a waiting turn, or hide it. */
  function wait(view) {
    room.waiting = view?.state === "waiting" ? view : null;
    tell("waiting");
  }

  /** Show an error, with a retry if no message offers one. */
  function ended(view, { text, files, ...body } = {}) {
    const { state, reply_id: reply } = view;
    if (state !== "failed" && (state !== "interrupted" || reply)) return;
    const problem = new Problem(view.problem ?? { title: t("chat.cut_off") });
    const again = !reply && (() => take(body).catch(complain));
    const passed = (Date.now() - new Date(view.finished_at ?? Date.now())) / 1000;
    const wait = (problem.body.retry_after ?? 0) - passed;
    const link = problem.slug === "model-context-overflow" ? windowLink(view.model) : remedy(problem);
    room.composer.notice(explained(problem), { again, wait, link });
  }

  async function take(body, { ontaken } = {}) {
    // The model must not receive a message that the user has just deleted.
    await commit();
    if (running) throw new Problem({ title: t("chat.busy") }, 409);
    // If the same request is repeated because its delivery is unknown, it has the same turn id.
    const key = JSON.stringify(body);
    if (untaken.key !== key) untaken = { key, id: newId() };
    const kind = ["continue", "impersonate"].find((each) => body[each]);
    try {
      return await run({ id: untaken.id, kind, body, ontaken });
    } catch (error) {
      if (error.body) untaken = {};
      const other = /^turn-(in-progress|waiting)$/.test(error.slug) && error.body.turn_id;
      if (other) takeUp(await api.get(`/turns/${other}`, { signal }));
      throw error;
    }
  }

  const latest = async () =>
    (await api.get(`/chats/${room.chat.id}/turns`, { query: { limit: 1 }, signal })).items[0];

  /** Follow a turn that began in another window, or before the page was loaded. */
  function takeUp(view) {
    if (view?.state === "running" || view?.state === "waiting") {
      run({ id: view.id, kind: view.kind, begun: true, taken: true }).catch(complain);
    } else if (view && [view.user_message_id, view.reply_id].includes(path.last()?.id)) ended(view);
  }

  /** Stop the turn. */
  async function stop() {
    if (!running?.begun) running?.quit.abort();
    else await api.post(`/turns/${running.id}/stop`);
  }

  /** Answer the question of a waiting turn, which then continues. */
  async function choose(option, text) {
    const { id, kind } = room.waiting;
    await commit();
    // The events that follow come with the stream of the turn.
    const answer = await send(`/turns/${id}/choice`, { method: "POST", json: { option, text }, signal });
    if (!answer.ok) throw await problemOf(answer);
    answer.body?.cancel();
    await run({ id, kind, begun: true, taken: true });
  }

  /** Abandon a waiting turn. */
  async function abandon() {
    await api.post(`/turns/${room.waiting.id}/stop`);
    wait(null);
    await path.reload();
    tell("turn");
  }

  return { take, takeUp, stop, choose, abandon };
}
