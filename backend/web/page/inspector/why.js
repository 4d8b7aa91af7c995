/** Why something is in a prompt, or not, in words. */
import { t } from "../core/words.js";

const quoted = (words) => words.map((word) => `“${word}”`).join(", ");

/** From this strength on a text says nearly what was asked, and below 1 it is only a little about it. */
const NEARLY = 2;

/** One of a search's signals, as a sentence. */
export function signal({ kind, strength = 1, words = [], name }) {
  const how = words.length ? "has" : kind !== "meaning" ? kind : strength >= NEARLY ? "same" : strength < 1 ? "little" : kind;
  return t(`context.signals.${how}`, { name, words: quoted(words), count: words.length });
}

/** One of the API's reasons. */
function worded(reason) {
  const { kind, key = "", found_in: place, signals = [] } = reason;
  if (signals.length) return t("context.matched", { signals: signals.map(signal).join("; "), rank: reason.rank });
  return t(`context.why.${kind}`, {
    ...reason,
    part: Math.round(100 * reason.score),
    // A regex stands between its slashes.
    key: key.startsWith("/") ? key : `“${key}”`,
    place: place && t(`context.found_in.${place.kind}`, place),
  });
}

const isSearch = ({ kind }) => kind === "semantic" || kind === "words";

/** Why something is in a prompt, or not, as a person would say it; a list of the API's reasons. */
export function why(reasons) {
  // A key that was said tells more than what was measured.
  const parts = reasons.toSorted((one, other) => isSearch(one) - isSearch(other));
  return upper(parts.map(worded).join("; "));
}

/** A text with a capital at its beginning. */
export const upper = (text) => text.charAt(0).toUpperCase() + text.slice(1);
