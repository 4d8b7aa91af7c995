/** Progress of background jobs. */
import { events, problemOf, send } from "./api.js";
import { pause, settled } from "./dom.js";

const SILENCE = 40_000; // the server sends a heartbeat every 15 seconds

/**
 * Read a state again until the signal aborts: each second while `read()` returns true, and while the
 * page is visible.
 */
export async function poll(read, signal, busy) {
  while (!signal.aborted) {
    await pause(busy ? 1000 : 5000, signal);
    busy = !document.hidden && (await read().catch(() => false));
  }
}

/** True if a job has ended. A deleted job is null. */
const hasEnded = (job) => !job || /done|dead/.test(job.state);

/**
 * Follow a job until it ends, across interrupted connections. `show` gets every state of it.
 * Returns its last state, or null if it was deleted.
 */
export async function followJob(id, signal, show) {
  let job = null;
  while (!signal.aborted) {
    const link = new AbortController();
    const alive = settled(() => link.abort(), SILENCE);
    alive();
    try {
      const answer = await send(`/jobs/${id}/events`, { signal: AbortSignal.any([signal, link.signal]) });
      if (answer.status === 404) return null;
      if (!answer.ok) throw await problemOf(answer);
      for await (const { event, data } of events(answer, alive)) {
        job = event === "progress" ? { ...job, progress: data } : data;
        show(job);
        if (hasEnded(job)) return job;
      }
    } catch (error) {
      // A problem of the request stays. An interrupted connection does not.
      if (signal.aborted || (error.status >= 400 && error.status < 500 && error.status !== 429)) throw error;
    } finally {
      alive.drop();
    }
    await pause(1000, signal);
  }
  return job;
}
