/** The reasons why an item is in a prompt or not, as text. */
import { t } from "../core.js";

const quoted = (words) => words.map((word) => `“${word}”`).join(", ");

/** From this strength on, a text is a close match. Below 1 it is only loosely related. */
const NEARLY = 2;

/** A signal of the search as a sentence. */
export function signal({ kind, strength = 1, words = [], name }) {
  const how = words.length ? "has" : kind !== "meaning" ? kind : strength >= NEARLY ? "same" : strength < 1 ? "little" : kind;
  return t(`context.signals.${how}`, { name, words: quoted(words), count: words.length });
}

/** A reason of the API as text. */
function worded(reason) {
  const { kind, key = "", found_in: place, because, signals = [] } = reason;
  if (signals.length) return t("context.matched", { signals: signals.map(signal).join("; "), rank: reason.rank });
  return t(`context.why.${kind}`, {
    ...reason,
    part: Math.round(100 * reason.score),
    // A regex already has slashes around it.
    key: key.startsWith("/") ? key : `“${key}”`,
    place: place && t(`context.found_in.${place.kind}`, place),
    because: because && t(`context.preferred.${because}`),
  });
}

const isSearch = ({ kind }) => kind === "semantic" || kind === "words";

/** Render a list of the API's reasons as a sentence. */
export function why(reasons) {
  // Keys come first, because they explain more than scores.
  const parts = reasons.toSorted((one, other) => isSearch(one) - isSearch(other));
  return upper(parts.map(worded).join("; "));
}

/** Return a text with a capital first letter. */
export const upper = (text) => text.charAt(0).toUpperCase() + text.slice(1);
