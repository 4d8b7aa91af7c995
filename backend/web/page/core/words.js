/** Words and figures as people read them. All texts stand in texts.json: a translation is another
 * file of its form. */
import texts from "../texts.json" with { type: "json" };

const LANGUAGE = texts.language;

const plural = new Intl.PluralRules(LANGUAGE);

/**
 * A text by its path: `t("chat.send")`. `{name}` in it is replaced; a text with the forms `one`
 * and `other` is chosen by `count`.
 */
export function t(path, values = {}) {
  let found = texts;
  for (const part of path.split(".")) found = found?.[part];
  if (found && typeof found === "object" && "other" in found) {
    found = found[plural.select(values.count)] ?? found.other;
  }
  if (typeof found !== "string") throw new Error(`no text: ${path}`);
  return found.replace(/\{(\w+)\}/g, (whole, name) =>
    name in values ? shown(values[name]) : whole,
  );
}

/** Whether there is a text of that path. */
export function has(path) {
  return typeof path.split(".").reduce((found, part) => found?.[part], texts) === "string";
}

const shown = (value) => (typeof value === "number" ? number(value) : String(value));

const whole = new Intl.NumberFormat(LANGUAGE);
const day = new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium" });
const moment = new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium", timeStyle: "short" });
const relative = new Intl.RelativeTimeFormat(LANGUAGE, { numeric: "auto" });

/** `12,345`. */
export const number = (value) => whole.format(value);
/** `21 Nov 2026`. */
export const date = (value) => day.format(new Date(value));
/** `21 Nov 2026, 18:03`. */
export const dateTime = (value) => moment.format(new Date(value));

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
  const [unit, size] = STEPS.find(([, each]) => Math.abs(seconds) >= each) ?? ["second", 1];
  return unit === "second" ? t("time.now") : relative.format(Math.trunc(seconds / size), unit);
}
