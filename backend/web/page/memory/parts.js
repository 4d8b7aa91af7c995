/** What the views of memory share: words, ways, forms in dialogs, files, a chronicle's acts. */
import { api } from "../core/api.js";
import { attempt, deleting, dialog, sure } from "../core/dialogs.js";
import { h, settled, tabs as links } from "../core/dom.js";
import { sendform } from "../core/form.js";
import { importing } from "../core/importing.js";
import { chats, chronicles, kept, lorebooks } from "../core/store.js";
import { t, texts } from "../core/words.js";

/** A text of this part of the page. */
export const m = (path, values) => t(`memory.${path}`, values);

/** Titles of all chats, by id. */
export const titles = async () =>
  new Map((await chats.all()).map((it) => [it.id, it.title || t("chats.untitled")]));

/** Links to places beside each other, `[name, address]`, of which one is here. */
export const tabs = (here, ...places) =>
  links(m("memory"), here, places.map(([name, href]) => [name, m(name), href]));

/** The tabs of all memory. */
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
 * Ask for fields in a dialog; what `send(values)` gave. What is typed outlives the dialog, under
 * `key` in this browser, until it is sent.
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
    form.element.addEventListener("input", () =>
      kept.set(key, Object.fromEntries([...form.controls].map(([name, each]) => [name, each.read()]))));
    return form.element;
  }, { wide: fields.length > 2 });

/**
 * A form that narrows what a view shows. What stands in it stands in the address, too.
 *
 * @param {object} inputs Labels of fields, or options `[value, label]` of selects, by the API's names.
 * @param {Function} changed Hears that something else is wanted.
 * @returns {{element, wanted, narrow}} `wanted()`: what is set, by name; `narrow(name, value)` sets one.
 */
export function sieve(place, query, signal, inputs, changed) {
  const input = ([name, what]) => {
    const value = query.get(name);
    if (typeof what === "string") {
      const label = { "aria-label": what, placeholder: what };
      return h("input", { type: "search", name, value, maxlength: 200, ...label });
    }
    return h("select", { name, "aria-label": what[0][1] }, what.map(([each, label]) =>
      h("option", { value: each, selected: each === value }, label)));
  };
  const soon = settled(() => {
    history.replaceState(null, "", `#${place}?${new URLSearchParams(wanted())}`);
    changed();
  });
  signal.addEventListener("abort", soon.drop);
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

/** Signals that end with `signal`, and each when the next is asked for. */
export function signals(signal) {
  let last = new AbortController();
  return () => {
    last.abort();
    last = new AbortController();
    return AbortSignal.any([signal, last.signal]);
  };
}

/** Ask for a new chronicle; it, or undefined. */
export async function make() {
  const send = (values) => api.post("/chronicles", values);
  const made = await asking("chronicle", m("make"), CHRONICLE, {}, send);
  if (made) chronicles.changed();
  return made;
}

/** Files of events that come in, into new chronicles or into the one `to` names. */
export const files = importing({
  accept: ".json",
  drop: m("drop"),
  async send(file, options, to) {
    const { id, name, then } = to ?? {};
    const made = await api.upload(`/chronicles/${id ? `${id}/` : ""}import`, file, options);
    chronicles.changed();
    then?.();
    const link = h("a", { href: `#/chronicles/${made.chronicle_id}` }, name ?? file.name);
    return [[link, h("small", {}, m("imported", { ...made, count: made.created }))]];
  },
});

/** Items of a chronicle's menu; `changed()` and `gone()` may hear what came of them. */
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
  const save = () => api.download(`${path}/export`);
  const remove = () => attempt(async () => {
    if (!(await sure(m("delete", it), m("delete_text", it), t("common.delete")))) return;
    await api.delete(path);
    lorebooks.changed();
    chronicles.changed();
    gone?.();
  });
  return [
    { label: m("rename"), icon: "edit", act: rename },
    { label: m("add_file"), icon: "upload", act: add },
    { label: t("common.export"), icon: "download", act: save },
    deleting(remove),
  ];
}
