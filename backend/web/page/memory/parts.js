/** Shared parts of the memory views: texts, tabs, dialogs, import, and menus of chronicles. */
import {
  api, chats, chronicles, deleting, dialog, download, h, kept, lorebooks, on, sendform, settled,
  t, tabs as links, texts,
} from "../core.js";
import { importing } from "../core/importing.js";

/** A text of the memory views. */
export const m = (path, values) => t(`memory.${path}`, values);

/** Return the titles of all chats by id. */
export const titles = async () =>
  new Map((await chats.all()).map((it) => [it.id, it.title || t("chats.untitled")]));

/** Tabs from `[name, address]`. `here` is the current one. */
export const tabs = (here, ...places) =>
  links(m("memory"), here, places.map(([name, href]) => [name, m(name), href]));

/** The tabs of the memory views. */
export const areas = (here) => tabs(here, ["search", "#/memory"], ["chronicles", "#/chronicles"], ["state", "#/memory/status"]);

const { kinds, weights } = texts.memory;
export const KINDS = Object.entries(kinds);
const WEIGHTS = Object.entries(weights).map(([weight, label]) => [Number(weight), label]);

const field = (name, kind, more) => ({ name, kind, label: m(name), ...more });

/** Fields of an event. */
export const EVENT = [
  field("summary", "area", { most: 4000, required: true }),
  field("kind", "select", { options: KINDS, otherwise: "event" }),
  field("significance", "select", { options: WEIGHTS, otherwise: 3 }),
  field("day", "number", { step: 1 }),
  field("time", "text", { most: 300 }),
  field("where", "text", { most: 300 }),
  field("who", "words"),
  field("keywords", "words"),
  field("pinned", "check", { help: m("pin_help") }),
];

const CHRONICLE = [
  { name: "name", label: t("common.name"), required: true, most: 500, wide: true },
  field("description", "area", { most: 20000 }),
];

/**
 * Ask for fields in a dialog, and return the result of `send(values)`. The input is kept under
 * `key` in this browser until it is sent.
 */
export const asking = (key, label, fields, value, send) =>
  dialog(label, (close) => {
    const now = { ...value, ...kept.get(key) };
    const form = sendform({
      fields: fields.map((each) => ({ ...each, value: now[each.name] ?? each.otherwise })),
      submit: t("common.save"),
      async send(values) {
        const made = await send(values);
        kept.set(key, null);
        close(made);
      },
    });
    form.element.classList.add("fields");
    on(form.element, "input", () =>
      kept.set(key, Object.fromEntries([...form.controls].map(([name, each]) => [name, each.read()]))));
    return form.element;
  }, { wide: fields.length > 2 });

/**
 * A form that filters a view. Its values are part of the address.
 *
 * @param {object} inputs Labels of fields, or options `[value, label]` of selects, by the API's
 *   names.
 * @param {Function} changed Called after each change.
 * @returns {{element, wanted, narrow}} `wanted()` returns the values by name; `narrow(name, value)`
 *   sets one.
 */
export function sieve(place, query, signal, inputs, changed) {
  const input = ([name, what]) => {
    const value = query.get(name);
    if (typeof what === "string") {
      const label = { label: what, placeholder: what };
      return h("input", { type: "search", name, value, maxlength: 200, ...label });
    }
    return h("select", { name, label: what[0][1] }, what.map(([each, label]) =>
      h("option", { value: each, selected: each === value }, label)));
  };
  const soon = settled(() => {
    history.replaceState(null, "", `#${place}?${new URLSearchParams(wanted())}`);
    changed();
  }, 300, signal);
  const onsubmit = (event) => event.preventDefault();
  const element = h("form.row.sieve", { role: "search", oninput: () => soon(), onsubmit },
    Object.entries(inputs).map(input));
  const wanted = () => Object.fromEntries([...new FormData(element)].filter(([, value]) => value.trim()));
  const narrow = (name, value) => {
    element.elements[name].value = value;
    soon();
  };
  return { element, wanted, narrow };
}

/**
 * Return a function for signals. A signal aborts with `signal`, or when the next one is requested.
 */
export function signals(signal) {
  let last = new AbortController();
  return () => {
    last.abort();
    last = new AbortController();
    return AbortSignal.any([signal, last.signal]);
  };
}

/** Ask for a new chronicle. Returns it, or undefined. */
export async function make() {
  const send = (values) => api.post("/chronicles", values);
  const made = await asking("chronicle", m("make"), CHRONICLE, {}, send);
  if (made) chronicles.changed();
  return made;
}

/** Import of event files, into new chronicles or into the chronicle `to`. */
export const files = importing({
  accept: ".json",
  drop: m("drop"),
  async send(file, row, to) {
    const { id, name, then } = to ?? {};
    const made = await api.upload(`/chronicles/${id ? `${id}/` : ""}import`, file, row);
    chronicles.changed();
    then?.();
    const link = h("a", { href: `#/chronicles/${made.chronicle_id}` }, name ?? file.name);
    return { text: [link, h("small", m("imported", { ...made, count: made.created }))] };
  },
});

/** The menu of a chronicle. `changed()` and `gone()` are called after changes and deletion. */
export function acts(it, changed, gone) {
  const { id, revision: ifMatch } = it;
  const path = `/chronicles/${id}`;
  const rename = async () => {
    const send = (values) => api.patch(path, values, { ifMatch });
    if (!(await asking(`chronicle.${id}.${ifMatch}`, m("rename"), CHRONICLE, it, send))) return;
    chronicles.changed();
    changed?.();
  };
  const add = () => files.choose({ ...it, then: changed });
  const save = () => download(`${path}/export`);
  const remove = () => {
    chronicles.remove(id, it.name, lorebooks.changed);
    gone?.();
  };
  return [
    { label: m("rename"), icon: "edit", act: rename },
    { label: m("add_file"), icon: "upload", act: add },
    { label: t("common.export"), icon: "download", act: save },
    deleting(remove),
  ];
}
