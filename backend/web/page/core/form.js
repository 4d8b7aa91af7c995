/** Forms, from a description of their fields: labels, help, token counts, and saving by itself. */
import { api } from "./api.js";
import { explain } from "./dialogs.js";
import { fill, h, icon, set, settled } from "./dom.js";
import { number, t } from "./words.js";

let ids = 0;

const KINDS = {
  text: (field) => h("input", { type: field.type ?? "text", maxlength: field.most, placeholder: field.placeholder }),
  area: (field) => h("textarea", { rows: field.rows ?? 3, maxlength: field.most, placeholder: field.placeholder }),
  number: (field) => h("input", { type: "number", min: field.min, max: field.max, step: field.step ?? "any", placeholder: field.placeholder }),
  check: () => h("input", { type: "checkbox" }),
  select: (field) => h("select", {}, field.options.map(([value, label]) => h("option", { value: String(value) }, label))),
  // One a line, or with commas between.
  lines: (field) => h("textarea", { rows: field.rows ?? 2, placeholder: field.placeholder }),
  words: (field) => h("input", { type: "text", placeholder: field.placeholder ?? t("form.commas") }),
};

const READ = {
  number: (input) => (input.value === "" ? null : Number(input.value)),
  check: (input) => input.checked,
  lines: (input) => input.value.split("\n").filter((line) => line.trim()),
  words: (input) => input.value.split(",").map((word) => word.trim()).filter(Boolean),
  // A select's options may stand for values that are no texts.
  select: (input, field) => (field.options.find(([value]) => String(value) === input.value) ?? [null])[0],
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
 *   `help`, `count` (show tokens; a "counted" event tells how many), and what the kind takes (`options`, `min`, `max`, `rows`...).
 * @returns {{element, input, read, write, fault}}
 */
export function control(field) {
  const kind = field.kind ?? "text";
  const input = KINDS[kind](field);
  const id = `f${++ids}`;
  const note = h("small.fault", { id: `${id}-fault`, role: "alert" });
  const help = field.help && h("small.help", { id: `${id}-help` }, field.help);
  const tokens = field.count && h("small.tokens", { "aria-live": "off" });
  set(input, {
    id,
    name: field.name,
    required: field.required,
    autocomplete: field.autocomplete ?? "off",
    "aria-describedby": `${help ? `${id}-help ` : ""}${id}-fault`,
  });
  const head = h("span.label", {}, h("label", { for: id }, field.label), tokens);
  const element = h(
    "div.field",
    { class: `${kind} ${field.wide ? "wide" : ""}`, "data-name": field.name },
    kind === "check" ? [input, head] : [head, input],
    help,
    note,
  );
  if (tokens) counting.follow(input, tokens);
  return {
    element,
    input,
    read: () => (READ[kind] ?? ((each) => each.value))(input, field),
    write(value) {
      (WRITE[kind] ?? ((each, text) => (each.value = text ?? "")))(input, value);
      if (tokens) counting.soon(input);
    },
    fault(text) {
      note.textContent = text ?? "";
      set(input, { "aria-invalid": text ? "true" : null });
    },
  };
}

/** Token counts beside fields, asked for together. */
const counting = {
  watched: new Map(),
  changed: new Set(),
  follow(input, place) {
    this.watched.set(input, place);
    input.addEventListener("input", () => this.soon(input));
  },
  soon(input) {
    this.changed.add(input);
    this.ask();
  },
  ask: settled(async () => {
    const inputs = [...counting.changed];
    counting.changed.clear();
    try {
      const { counts } = await api.post("/tokens", { texts: inputs.map((input) => input.value) });
      inputs.forEach((input, at) => {
        const place = counting.watched.get(input);
        place.textContent = counts[at] ? t("form.tokens", { count: counts[at] }) : "";
        input.dispatchEvent(new CustomEvent("counted", { detail: counts[at], bubbles: true }));
      });
    } catch {
      // Counts are a help: without them the field works as well.
    }
    for (const input of counting.watched.keys()) {
      if (!input.isConnected) counting.watched.delete(input);
    }
  }, 400),
};

/**
 * A form that saves what is changed, by itself, when the typing stops.
 *
 * @param {object} options
 *   `groups`: `[{ title, open, fields }]`; without a title the fields just stand there, with one
 *   they fold away; a field's `control` makes one that is not as others. `value`: what is there. `save(changes)`: a promise; what it gives is the new
 *   value. `signal`: when the view is left, what is not saved is saved.
 * @returns {{element, flush, write}} `flush()` saves now; `write(value)` shows another value.
 */
export function autoform({ groups, value, save, signal }) {
  const state = h("p.saving", { role: "status" });
  const controls = new Map();
  let known = value;
  let running = Promise.resolve();

  const changes = () => {
    const found = {};
    for (const [name, each] of controls) {
      const now = each.read();
      each.fault(each.input?.validationMessage);
      if (each.input && !each.input.validity.valid) continue;
      if (JSON.stringify(now) !== JSON.stringify(known[name] ?? empty(now))) found[name] = now;
    }
    return found;
  };

  const store = async () => {
    const changed = changes();
    if (!Object.keys(changed).length) return;
    state.textContent = t("form.saving");
    try {
      known = (await save(changed)) ?? { ...known, ...changed };
      for (const name of Object.keys(changed)) controls.get(name).fault();
      fill(state, icon("check"), t("form.saved"));
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(state, icon("alert"), error.body ? explain(error) : t("errors.page"));
      if (!error.body) console.error(error);
      for (const { member, message } of error.faults ?? []) {
        controls.get(member.split(/[.[]/)[0])?.fault(message);
      }
    }
  };
  // One after the other: each carries the revision that the one before it made.
  const soon = settled(() => (running = running.then(store)), 700);

  const element = h(
    "form.autoform",
    { onsubmit: (event) => event.preventDefault(), oninput: soon, onchange: soon },
    groups.map(({ title, open, fields, note }) => {
      const made = fields.map((field) => {
        const each = (field.control ?? control)(field);
        each.write(value[field.name]);
        controls.set(field.name, each);
        return each.element;
      });
      const body = h("div.fields", {}, note && h("p.help", {}, note), made);
      return title ? h("details.group", { open }, h("summary", {}, title), body) : body;
    }),
    state,
  );
  const flush = () => (soon.now(), running);
  signal?.addEventListener("abort", flush, { once: true });
  addEventListener("pagehide", flush, { signal });
  return {
    element,
    flush,
    write(next) {
      known = next;
      for (const [name, each] of controls) each.write(next[name]);
    },
  };
}

const empty = (like) => (Array.isArray(like) ? [] : typeof like === "boolean" ? false : like === null ? null : "");

/**
 * A form that is sent with a button.
 *
 * @param {object} options `fields`, `submit` (the button's label), `send(values)`: a promise;
 *   `extra`: nodes between fields and button.
 */
export function sendform({ fields, submit, send, extra }) {
  const controls = new Map(fields.map((field) => [field.name, control(field)]));
  for (const field of fields) controls.get(field.name).write(field.value ?? (field.kind === "check" ? false : ""));
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
          if (!error.body) console.error(error);
          trouble.textContent = error.body ? explain(error) : t("errors.page");
          for (const { member, message } of error.faults ?? []) controls.get(member)?.fault(message);
        }
        button.disabled = false;
      },
    },
    [...controls.values()].map((each) => each.element),
    extra,
    trouble,
    h("footer", {}, button),
  );
  return { element, controls };
}

/** A bar that says how far something is: shares from 0 to 1, null where nobody knows. */
export function progress(label) {
  const bar = h("progress", { max: 1, "aria-label": label });
  const figure = h("span.figure");
  return {
    element: h("div.progress", {}, bar, figure),
    show(share, text) {
      if (share == null) bar.removeAttribute("value");
      else bar.value = share;
      figure.textContent = text ?? (share == null ? "" : `${number(Math.round(share * 100))} %`);
    },
  };
}
