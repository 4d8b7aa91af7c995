/**
 * Texts and formatted numbers. All texts are in texts.json, in English. A translation is another
 * file of that form, such as texts.de.json.
 */
import english from "../texts.json" with { type: "json" };

const { documentElement: root } = document;

/** The languages of the page. The server lists the translations in the document. */
export const LANGUAGES = ["en", ...root.dataset.languages.split(" ").filter(Boolean)];

/** The user's language if the page has it, or the first one of the browser that it has. */
function findLanguage() {
  for (const wanted of [root.dataset.language, ...navigator.languages]) {
    const found = LANGUAGES.find((each) => each === wanted) ?? LANGUAGES.find((each) => each === wanted?.split("-")[0]);
    if (found) return found;
  }
  return "en";
}

/** Return the texts of a translation. Missing ones are English. */
function translated(texts, own) {
  if (typeof texts === "string") return own || texts;
  // A language may have more plural forms than English.
  const all = Object.entries(texts).map(([name, text]) => [name, translated(text, own?.[name])]);
  return { ...own, ...Object.fromEntries(all) };
}

const LANGUAGE = findLanguage();
root.lang = LANGUAGE;

async function read(language) {
  const response = await fetch(new URL(`../texts.${language}.json`, import.meta.url));
  return response.json();
}

/** All texts, for elements that are made from lists of texts. */
export const texts = LANGUAGE === "en" ? english : translated(english, await read(LANGUAGE).catch(() => ({})));

/** The name of a language in that language. */
export const tongue = (language) => new Intl.DisplayNames(language, { type: "language" }).of(language);

/** True if the page need not load again to show its texts in a language. */
export const speaks = (language) => !LANGUAGES.includes(language) || language === LANGUAGE;

const plural = new Intl.PluralRules(LANGUAGE);

/**
 * Return the text at a path: `t("chat.send")`. `{name}` is replaced by a value. `count` chooses
 * between the plural forms of the language, such as `one`, `few` and `other`.
 */
export function t(path, values = {}) {
  let found = at(path);
  if (found?.other) found = found[plural.select(values.count)] ?? found.other;
  if (typeof found !== "string") throw new Error(`no text: ${path}`);
  return found.replace(/\{(\w+)\}/g, (whole, name) =>
    name in values ? shown(values[name]) : whole,
  );
}

/** True if there is a text at the path. */
export function has(path) {
  return typeof at(path) === "string";
}

const at = (path) => path.split(".").reduce((found, part) => found?.[part], texts);
const shown = (value) => (typeof value === "number" ? number(value) : value);

const whole = new Intl.NumberFormat(LANGUAGE);
const day = new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium" });
const moment = new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium", timeStyle: "short" });
const relative = new Intl.RelativeTimeFormat(LANGUAGE, { numeric: "auto" });

const listing = new Intl.ListFormat(LANGUAGE);
/** Join the parts that are not empty. */
export const combine = (parts, separator = " · ") => parts.filter(Boolean).join(separator);

/** The label and the help of a field from its text: "Label | Help". */
export function labels(text) {
  const [label, help] = text.split(" | ");
  return { label, help };
}

/** `Alda, Bor and Cid`. */
export const list = (names) => listing.format(names);

/** `12,345`. */
export const number = (value) => whole.format(value);
/** `$0.0123`, in US dollars. */
export const money = (amount) =>
  new Intl.NumberFormat(LANGUAGE, { style: "currency", currency: "USD", minimumFractionDigits: 0, maximumSignificantDigits: 3 }).format(amount);
/** `21 Nov 2026`. */
export const date = (value) => day.format(new Date(value));
/** `21 Nov 2026, 18:03`. */
export const dateTime = (value) => moment.format(new Date(value));

const SIZES = [
  ["gigabyte", 1e9],
  ["megabyte", 1e6],
  ["kilobyte", 1e3],
  ["byte", 1],
];

/** `1.2 MB`. */
export function size(bytes) {
  const [unit, step] = SIZES.find(([, each]) => bytes >= each) ?? SIZES.at(-1);
  return new Intl.NumberFormat(LANGUAGE, { style: "unit", unit, unitDisplay: step > 1 ? "short" : "long", maximumFractionDigits: 1 }).format(bytes / step);
}

const STEPS = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

/** `3 hours ago`. */
export function ago(value) {
  const seconds = (new Date(value) - Date.now()) / 1000;
  const step = STEPS.find(([, size]) => Math.abs(seconds) >= size);
  return step ? relative.format(Math.trunc(seconds / step[1]), step[0]) : t("time.now");
}
