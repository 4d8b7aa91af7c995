/** What the views of memory share: words, ways, forms in dialogs, files, a chronicle's acts. */
import { api } from "../core/api.js";
import { attempt, dialog, sure, toast } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { progress, sendform } from "../core/form.js";
import { chats, chronicles, kept, lorebooks } from "../core/store.js";
import { t } from "../core/words.js";

/** A text of this part of the page. */
export const m = (path, values) => t(`memory.${path}`, values);

/** Titles of all chats, by id. */
export const titles = async () =>
  new Map((await chats.all()).map((it) => [it.id, it.title || t("chats.untitled")]));

/** Links to places beside each other, `[name, address]`, of which one is here. */
export const tabs = (here, ...places) =>
  h("nav.tabs", { "aria-label": m("memory") }, places.map(([name, href]) =>
    h("a", { href, "aria-current": name === here && "page" }, m(name))));

/** The tabs of all memory. */
export const areas = (here) => tabs(here, ["search", "#/memory"], ["chronicles", "#/chronicles"]);

const KINDS = "event discovery promise relationship conflict death travel possession fact".split(" ");
export const KIND_OPTIONS = KINDS.map((kind) => [kind, m(`kinds.${kind}`)]);
const WEIGHTS = [1, 2, 3, 4, 5].map((weight) => [weight, m(`weights.${weight}`)]);

const field = (name, kind, more) => ({ name, kind, label: m(name), ...more });

/** Fields of an event. */
export const EVENT = [
  field("summary", "area", { most: 4000, required: true }),
  field("kind", "select", { options: KIND_OPTIONS, otherwise: "event" }),
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

/** Ask for a new chronicle; it, or undefined. */
export async function make() {
  const send = (values) => api.post("/chronicles", values);
  const made = await asking("chronicle", m("make"), CHRONICLE, {}, send);
  if (made) chronicles.changed();
  return made;
}

/** Have a file of events chosen and sent, and tell what came of it; undefined where nothing did. */
export async function importing(path) {
  const file = await new Promise((resolve) => {
    h("input", { type: "file", accept: ".json", onchange: ({ target }) => resolve(target.files[0]) }).click();
  });
  const stop = new AbortController();
  const bar = progress(file.name);
  let finish;
  dialog(t("common.import"), (close) => ((finish = close), bar.element)).then(() => stop.abort());
  const made = await attempt(() => api.upload(path, file, { onprogress: bar.show, signal: stop.signal }));
  finish();
  if (made) toast(m("imported", made));
  if (made) chronicles.changed();
  return made;
}

/** Items of a chronicle's menu; `changed()` and `gone()` hear what came of them. */
export function acts(it, changed, gone) {
  const { id, revision: ifMatch } = it;
  const path = `/chronicles/${id}`;
  const rename = async () => {
    const send = (values) => api.patch(path, values, { ifMatch });
    if (!(await asking(`chronicle.${id}.${ifMatch}`, m("rename"), CHRONICLE, it, send))) return;
    chronicles.changed();
    changed();
  };
  const add = async () => (await importing(`${path}/import`)) && changed();
  const save = () => h("a", { href: api.url(`${path}/export`), download: true }).click();
  const remove = () => attempt(async () => {
    if (!(await sure(m("delete", it), m("delete_text", it), t("common.delete")))) return;
    await api.delete(path);
    lorebooks.changed();
    chronicles.changed();
    gone();
  });
  return [
    { label: m("rename"), icon: "edit", act: rename },
    { label: m("add_file"), icon: "upload", act: add },
    { label: t("common.export"), icon: "download", act: save },
    { label: t("common.delete"), icon: "delete", act: remove, danger: true },
  ];
}
