/** Looks for changes of a chat that were made elsewhere: in another window, or by another client. */
import { on, pause } from "../core.js";

const SHORTEST_WAIT = 1_500;
const LONGEST_WAIT = 5_000;
const LONGEST_WAIT_OFFLINE = 60_000;

/**
 * Load the path again when it has changed, and then call `onchange`. Looks every few seconds while
 * the page is visible and no turn runs, and at once when the user returns to it.
 */
export async function watch(room, onchange) {
  const { path, signal } = room;
  let hurry = new AbortController();
  const soon = () => hurry.abort();
  on(document, "visibilitychange", soon, signal);
  on(window, "focus", soon, signal);

  const look = async () => {
    if (document.hidden || room.busy || !(await path.hasChanged()) || room.busy) return false;
    await Promise.all([room.refresh(), path.reload()]);
    await onchange();
    return true;
  };
  let wait = SHORTEST_WAIT;
  for (;;) {
    hurry = new AbortController();
    await pause(wait, AbortSignal.any([signal, hurry.signal]));
    if (signal.aborted) return;
    try {
      wait = (await look()) || hurry.signal.aborted ? SHORTEST_WAIT : Math.min(LONGEST_WAIT, wait * 1.1);
    } catch (error) {
      if (error.slug === "chat-not-found") return;
      wait = Math.min(LONGEST_WAIT_OFFLINE, wait * 2);
    }
  }
}
