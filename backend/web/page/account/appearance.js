/** Appearance of the page, and writing. Changes apply at once, in all browsers of the account. */
import { attempt, autoform, h, labels, LANGUAGES, pageSettings, t, tongue } from "../core.js";
import { choice, part } from "./parts.js";

const p = (name, values) => t(`page.${name}`, values);

/** A select. The first value is the default. */
const among = (name, ...values) =>
  ({ name, ...labels(p(name)), kind: "select", options: values.map((each, at) => [at ? each : null, p(`${name}_${each}`)]) });

const form = (signal, fields, then) =>
  autoform({
    groups: [{ fields }],
    value: Object.fromEntries(fields.map(({ name }) => [name, pageSettings.get()[name] ?? null])),
    signal,
    async save(changes) {
      await pageSettings.save(changes);
      then?.(changes);
    },
  }).element;

const dress = async (theme) => {
  await attempt(() => pageSettings.save({ theme: theme === "auto" ? null : theme }));
  return pageSettings.get().theme ?? "auto";
};

export function appearance(signal) {
  const { theme = "auto" } = pageSettings.get();
  const percent = { name: "font_percent", label: p("font_percent"), kind: "number", min: 75, max: 200, step: 5, placeholder: 100 };
  return [
    choice("theme", ["auto", "light", "dark", "sepia", "night"], theme, dress),
    part("reading", form(signal, [
      among("font", "serif", "sans", "dyslexia"),
      percent,
      among("width", "medium", "narrow", "wide"),
      among("style", "book", "bubbles"),
    ])),
  ];
}

/** The languages of the page, if there are several. */
function languages() {
  const options = [[null, p("language_browser")], ...LANGUAGES.map((each) => [each, tongue(each)])];
  return LANGUAGES.length > 1 && { name: "language", label: p("language"), kind: "select", options };
}

export function writing(signal) {
  const fields = [
    { ...among("enter_sends"), options: [[null, p("enter_sends_null")], [true, p("enter_sends_true")], [false, p("enter_sends_false")]] },
    { ...among("titles"), options: [[null, p("titles_null")], ...["model", "first_line", "off"].map((each) => [each, p(`titles_${each}`)])] },
    languages(),
  ].filter(Boolean);
  const again = async ({ currentTarget: button }) => {
    await attempt(() => pageSettings.save({ dismissed: null }));
    button.hidden = true;
  };
  const hints = pageSettings.get().dismissed?.length > 0 && h("button", { onclick: again }, p("hints"));
  // The texts of all views are in the new language after a reload.
  const then = (changes) => "language" in changes && location.reload();
  return part("writing", form(signal, fields, then), h("div", hints));
}
