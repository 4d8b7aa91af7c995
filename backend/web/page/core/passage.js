/** Passages of texts with highlighted search words. */
import { h } from "./dom.js";
import { t } from "./words.js";

/** A pattern that matches the words of a query with any ending. */
export function finding(query) {
  const skip = t("common.small_words").split(" ");
  const words = (query.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []).filter((each) => !skip.includes(each));
  const stems = words.map((each) => (each.length > 4 ? each.replace(/(ing|ed|es|s|e)$/, "") : each));
  // A query without words matches nothing.
  const any = stems.length ? `(?<![\\p{L}\\p{N}])(?:${stems.join("|")})[\\p{L}\\p{N}]*` : "$.";
  return new RegExp(`(${any})`, "iu");
}

/** A text without the marks of Markdown. */
export const plain = (text) => text.replace(/[*_`#>]+/g, "").trim();

/** The part of a text around the first match, with all matches highlighted. */
export function passage(text, find, most) {
  const whole = plain(text);
  const before = whole.lastIndexOf(" ", whole.search(find) - most / 4);
  const start = whole.length > most ? Math.max(0, before) : 0;
  const parts = whole.slice(start, start + most).split(find);
  return [
    start > 0 && "…",
    parts.map((part, at) => (at % 2 ? h("mark", part) : part)),
    start + most < whole.length && "…",
  ];
}
