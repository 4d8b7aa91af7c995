/** Forms from a description of their fields: labels, help, token counts, and automatic saving. */
import { api } from "./api.js";
import { complain, explain } from "./dialogs.js";
import { fill, h, icon, on, set, settled } from "./dom.js";
import { dateTime, number, t } from "./words.js";

let ids = 0;

/** Defaults of each kind of field. */
const KINDS = {
  text: { tag: "input", type: "text" },
  area: { tag: "textarea", rows: 3 },
  number: { tag: "input", type: "number", step: "any" },
  check: { tag: "input", type: "checkbox" },
  select: { tag: "select" },
  // One value per line, or comma-separated.
  lines: { tag: "textarea", rows: 2 },
  words: { tag: "input", type: "text", placeholder: t("form.commas") },
};

const READ = {
  number: (input) => (input.value === "" ? null : Number(input.value)),
  check: (input) => input.checked,
  lines: (input) => input.value.split("\n").filter((line) => line.trim()),
  words: (input) => input.value.split(",").map((word) => word.trim()).filter(Boolean),
  // Options of a select may have values that are not strings.
  select: (input, { options }) => options[input.selectedIndex]?.[0] ?? null,
};

const WRITE = {
  check: (input, value) => (input.checked = Boolean(value)),
  lines: (input, value) => (input.value = (value || []).join("\n")),
  words: (input, value) => (input.value = (value || []).join(", ")),
  select: (input, value) => (input.value = String(value)),
};

/**
 * A field: a label with its input in one block.
 *
 * @param {object} field `name`, `label`, `kind` (text, area, number, check, select, lines, words),
 *   `help`, `count` (shows tokens and sends a "counted" event), and options of the kind (`options`,
 *   `min`, `max`, `rows`...). `known` are words that complete those of the kind `words`.
 * @returns {{element, input, read, write, fault}}
 */
export function control(field) {
  const kind = field.kind ?? "text";
  const id = `f${++ids}`;
  const note = h("small.fault", { id: `${id}-fault`, role: "alert" });
  const help = field.help && h("small.help", { id: `${id}-help` }, field.help);
  const tokens = field.count && h("small.tokens", { "aria-live": "off" });
  const { tag, name, type, placeholder, rows, min, max, step, most, required } = { ...KINDS[kind], ...field };
  const autocomplete = field.autocomplete ?? "off";
  const described = { "aria-describedby": `${id}-help ${id}-fault` };
  const input = h(
    tag,
    { id, name, type, placeholder, rows, min, max, step, maxlength: most, required, autocomplete, ...described },
    field.options?.map(([value, label]) => h("option", { value: String(value) }, label)),
  );
  const offers = field.known && h("datalist", { id: `${id}-known` });
  // An option replaces the whole text, so it begins with the words before the last one.
  const offer = () => {
    const [before] = /^(.*,)?\s*/.exec(input.value);
    const rest = field.known.filter((word) => !READ.words(input).includes(word));
    fill(offers, rest.map((word) => h("option", { value: before + word })));
  };
  if (offers) set(input, { list: offers.id, oninput: offer, onfocus: offer });
  const head = h("span.label", h("label", { for: id }, field.label), tokens);
  const element = h(
    "div.field",
    { class: `${kind} ${field.wide ? "wide" : ""}` },
    kind === "check" ? [input, head] : [head, input],
    offers,
    help,
    note,
  );
  const recount = () => tokens && counted(input, tokens);
  on(input, "input", recount);
  return {
    element,
    input,
    read: () => (READ[kind] ?? ((each) => each.value))(input, field),
    write(value) {
      (WRITE[kind] ?? ((each, text) => (each.value = text ?? "")))(input, value);
      recount();
    },
    fault(text) {
      note.textContent = text ?? "";
      set(input, { "aria-invalid": text ? "true" : null });
    },
  };
}

/** Checkboxes for the members of a list, with the interface of `control`. */
export function boxes({ label, help, options }) {
  const inputs = options.map(([value, name]) => h("input", { type: "checkbox", value, label: name }));
  return {
    element: h(
      "fieldset.field.wide",
      h("legend.label", label),
      h("div.row", inputs.map((input) => h("label.row", input, input.ariaLabel))),
      h("small.help", help),
    ),
    fault() {},
    read: () => inputs.filter((input) => input.checked).map((input) => input.value),
    write: (values = []) => inputs.forEach((input) => (input.checked = values.includes(input.value))),
  };
}

/** Inputs whose tokens have to be counted, with the element that shows the number. */
const uncounted = new Map();
const count = settled(async () => {
  const these = [...uncounted];
  uncounted.clear();
  try {
    const { counts } = await api.post("/tokens", { texts: these.map(([input]) => input.value) });
    these.forEach(([input, place], at) => {
      place.textContent = counts[at] ? t("form.tokens", { count: counts[at] }) : "";
      input.dispatchEvent(new CustomEvent("counted", { detail: counts[at], bubbles: true }));
    });
  } catch {
    // Fields work without token counts, so errors are ignored.
  }
}, 400);

/** Queue the token count of an input. Several inputs are counted in one request. */
function counted(input, place) {
  uncounted.set(input, place);
  count();
}

/**
 * A form that saves changes automatically when the user stops typing.
 *
 * @param {object} options
 * `groups`: `[{ title, open, fields }]`; a group with a title can be folded; `control` replaces the
 * default control of a field. `value`: the current value. `save(changes)`: returns a promise.
 * `signal`: aborts when the user leaves the view; unsaved changes are saved then.
 * @returns {{element, flush, isUnsaved, write, put}} `flush()` saves now; `write(value)` shows
 *   another value, `put(some)` the values of some fields.
 */
export function autoform({ groups, value, save, signal }) {
  const state = h("p.saving", { role: "status" });
  const controls = new Map();
  let running = Promise.resolve();
  // A word that is being typed is not saved before the user leaves the field or the view.
  let isComplete = false;

  const show = (each, now) => {
    each.write(now);
    each.known = JSON.stringify(each.read());
  };

  const changes = () => {
    const found = {};
    for (const [name, each] of controls) {
      if (!isComplete && each.input?.matches(".words > :focus")) continue;
      const now = each.read();
      const fault = each.input?.validationMessage;
      each.fault(fault);
      if (!fault && JSON.stringify(now) !== each.known) found[name] = now;
    }
    return found;
  };

  const store = async () => {
    const changed = changes();
    if (!Object.keys(changed).length) return;
    state.textContent = t("form.saving");
    try {
      await save(changed);
      for (const [name, now] of Object.entries(changed)) controls.get(name).known = JSON.stringify(now);
      fill(state, icon("check"), h("span", { title: t("form.saved_at", { when: dateTime(new Date()) }) }, t("form.saved")));
    } catch (error) {
      if (error.name === "AbortError") return;
      // The form is no longer visible, so the error is shown as a toast.
      if (!element.isConnected) return complain(error);
      const again = h("button.quiet", { onclick: () => soon() }, t("common.retry"));
      if (error.isOffline) addEventListener("reconnected", soon, { once: true, signal });
      fill(state, icon("alert"), explain(error), again);
      blame(controls, error);
    }
  };
  // Saves run one after the other, because each one needs the revision of the one before it.
  const soon = settled(() => (running = running.then(store)), 700);

  const typed = ({ type, target }) => {
    const isWord = target.closest(".words");
    if (isWord) isComplete = type === "change";
    if (!isWord || isComplete) soon();
  };

  const element = h(
    "form.autoform",
    { onsubmit: (event) => event.preventDefault(), oninput: typed, onchange: typed },
    groups.map(({ title, open, fields }) => {
      const made = fields.map((field) => {
        const each = (field.control ?? control)(field);
        show(each, value[field.name]);
        controls.set(field.name, each);
        return each.element;
      });
      const body = h("div.fields", made);
      return title ? h("details.group", { open }, h("summary", title), body) : body;
    }),
    state,
  );
  const flush = () => {
    isComplete = true;
    soon();
    soon.now();
    return running;
  };
  signal?.addEventListener("abort", flush, { once: true });
  on(window, "pagehide", flush, signal);
  return {
    element,
    flush,
    /** True if there is input that is not stored yet. */
    get isUnsaved() {
      return [...controls.values()].some((each) => JSON.stringify(each.read()) !== each.known);
    },
    write(next) {
      for (const [name, each] of controls) show(each, next[name]);
    },
    put(some) {
      for (const [name, now] of Object.entries(some)) show(controls.get(name), now);
    },
  };
}

/** Show validation errors next to their fields. */
function blame(controls, { faults = [] }) {
  for (const { member, message } of faults) {
    const of = (end) => controls.get(member.split(end)[0]);
    (of("[") ?? of(/[.[]/))?.fault(message);
  }
}

/**
 * A form with a submit button.
 *
 * @param {object} options `fields`, `submit` (the label of the button), `send(values)` (returns a
 *   promise), `extra` (nodes between the fields and the button).
 */
export function sendform({ fields, submit, send, extra }) {
  const controls = new Map(fields.map((field) => [field.name, (field.control ?? control)(field)]));
  for (const { name, value, options } of fields) controls.get(name).write(value ?? (options ? options[0]?.[0] : ""));
  const trouble = h("p.trouble", { role: "alert" });
  const button = h("button.primary", { type: "submit" }, submit);
  const element = h(
    "form.stack",
    {
      async onsubmit(event) {
        event.preventDefault();
        trouble.textContent = "";
        for (const each of controls.values()) each.fault();
        button.disabled = true;
        try {
          await send(Object.fromEntries([...controls].map(([name, each]) => [name, each.read()])));
        } catch (error) {
          trouble.textContent = explain(error);
          blame(controls, error);
        }
        button.disabled = false;
        element.querySelector("[aria-invalid]")?.focus();
      },
    },
    [...controls.values()].map((each) => each.element),
    extra,
    trouble,
    h("footer", button),
  );
  return { element, controls };
}

/** A progress bar: a share from 0 to 1, or null if it is unknown. */
export function progress(label) {
  const bar = h("progress", { max: 1, label });
  const figure = h("span.figure");
  return {
    element: h("div.progress", bar, figure),
    show(share, text) {
      if (share == null) bar.removeAttribute("value");
      else bar.value = share;
      figure.textContent = text ?? (share == null ? "" : `${number(Math.round(share * 100))} %`);
    },
  };
}

/**
 * A search field. `items` are [[element, text, ...]]: elements without a match are hidden, unless
 * `told(count, found)` shows what was found.
 */
export function finder(label, told, also = []) {
  const attributes = { type: "search", label, placeholder: label };
  const input = h("input.finder", { ...attributes, oninput: () => self.run() });
  const self = {
    input,
    items: [],
    run() {
      const words = [...input.value.toLowerCase().split(/\s+/), ...also];
      const found = self.items.filter(([element, text]) => {
        const lower = text.toLowerCase();
        const is = words.every((word) => lower.includes(word));
        if (element) element.hidden = !is;
        return is;
      });
      told?.(found.length, found);
    },
  };
  return self;
}
