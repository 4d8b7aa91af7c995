/** Why something is in a prompt, or not, in words. */
import { has, t } from "../core/words.js";

/** What is said of keys. A key is what somebody typed, and may look like anything. */
const KEY = /^(secondary )?key (.+?) in (the [\w' ]{1,40}|message \d{1,9}|entry ".{1,500}" \(recursion \d{1,9}\))$/s;
const NEXT = /; (?=(?:secondary )?key |semantic |constant|sticky|decorator )/;

/**
 * One of the API's reasons. Its name in texts.json is what is left of it without what stands in
 * quotes, which the text has as {a} and {b}, and without figures, of which it has the last as {count}.
 */
function worded(reason) {
  const [, isSecond, key, where] = KEY.exec(reason) ?? [];
  if (key) {
    const values = { key: key.replace(/^"(.*)"$/s, "“$1”"), where: worded(where) };
    return t(`context.why.${isSecond ? "second_key" : "key"}`, values);
  }
  const quoted = [];
  const bare = reason.replace(/"(.*?)("(?!\w)|$)/gs, (whole, text, end) => {
    if (!end) return whole;
    quoted.push(text);
    return "";
  });
  const count = Number(bare.match(/[\d.]+/g)?.at(-1));
  const name = `context.why.${bare.match(/[a-z]+/gi)?.join("_")}`;
  return has(name) ? t(name, { a: quoted[0], b: quoted[1], count }) : reason;
}

/** Why something is in a prompt, or not, as a person would say it. */
export function why(reason) {
  const parts = reason.split(NEXT);
  // A key that was said tells more than what was measured.
  parts.sort((one, other) => one.startsWith("semantic") - other.startsWith("semantic"));
  return upper(parts.map(worded).join("; "));
}

/** A text with a capital at its beginning. */
export const upper = (text) => text.charAt(0).toUpperCase() + text.slice(1);
