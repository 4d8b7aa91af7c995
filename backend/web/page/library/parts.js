/** What the library's views are made of: buttons, searching, files, pictures, deleting, saving. */
import { api } from "../core/api.js";
import { attempt, undoable } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { progress, sendform } from "../core/form.js";
import { t } from "../core/words.js";
import { face, repictured } from "./faces.js";

/** A button with an icon; one that is "quiet" shows nothing else. */
export function act(sign, label, onclick, look = "") {
  const quiet = look.includes("quiet");
  const attributes = { type: "button", class: look, onclick, "aria-label": quiet && label };
  return h("button", attributes, icon(sign), !quiet && label);
}

/** Put these children in place of others; the focus stays where it was, or goes to the first button. */
export function refill(box, ...children) {
  const at = document.activeElement;
  const had = box.contains(at);
  fill(box, ...children);
  if (had) (at.isConnected ? at : box.querySelector("button"))?.focus();
}

/** A search field over `items`, [[element, text]]; what lacks a word of it, or of `also`, is hidden. */
export function finder(label, told, also = []) {
  const attributes = { type: "search", "aria-label": label, placeholder: label };
  const input = h("input.finder", { ...attributes, oninput: () => self.run() });
  const self = {
    input,
    items: [],
    run() {
      const words = [...input.value.toLowerCase().split(/\s+/), ...also];
      const shown = self.items.filter(
        ([element, text]) => !(element.hidden = !words.every((word) => text.toLowerCase().includes(word))),
      );
      told?.(shown.length);
    },
  };
  return self;
}

/** Have the person choose files. */
export function pick(accept, take, multiple = false) {
  const input = h("input", { type: "file", accept, multiple, onchange: () => take(input.files) });
  input.click();
}

/** Let files be dropped on `target`; `element` shows that they may be. */
export function dropping(target, element, take, signal) {
  let timer;
  const over = (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    element.classList.toggle("dropping", event.type === "dragover");
    clearTimeout(timer);
    timer = setTimeout(() => element.classList.remove("dropping"), 400);
    if (event.type === "drop") take(event.dataTransfer.files);
  };
  target.addEventListener("dragover", over, { signal });
  target.addEventListener("drop", over, { signal });
}

/** The tabs between characters and personas. */
export const tabs = (at) =>
  h(
    "nav.tabs",
    { "aria-label": t("library.tabs") },
    ["characters", "personas"].map((each) =>
      h("a", { href: `#/${each}`, "aria-current": each === at && "page" }, t(`library.${each}`)),
    ),
  );

/** Delete an item of a store's list; for some seconds it can be had back. */
export const remove = (store, path, { id }, name) =>
  undoable(t("library.deleted", { name }), {
    hide: () => store.hide(id),
    act: async (options) => {
      await api.delete(`${path}/${id}`, undefined, options);
      store.changed();
    },
    show: () => store.hide(id, false),
  });

/** A form that makes a new item of its name. */
export const naming = (path, store, made) =>
  sendform({
    fields: [{ name: "name", label: t("common.name"), required: true, most: 200 }],
    submit: t("library.make"),
    async send(values) {
      const item = await api.post(path, values);
      store.changed();
      made(item);
    },
  }).element;

/** Saves changes of an item for an `autoform`, against the revision that is known. */
export const saver = (path, item, store, signal, told) => async (changes) => {
  // A page on its way out may still send so much.
  const keepalive = JSON.stringify(changes).length < 20_000;
  Object.assign(item, await api.patch(`${path}/${item.id}`, changes, { ifMatch: item.revision, keepalive }));
  if (signal.aborted) store.changed();
  else {
    store.drop();
    told();
  }
  return { ...item };
};

/** An item's picture, replaced by a press or by dropping another on it. */
export function portrait(kind, item, store, signal) {
  const path = `/${kind}/${item.id}/avatar`;
  const box = h("div.portrait");
  const draw = (is = item.has_avatar, bar) => {
    item.has_avatar = is;
    const label = t(is ? "library.picture_other" : "library.picture_add");
    const picture = face(item, { kind, size: "full" });
    refill(
      box,
      h("button.poster", { type: "button", onclick: choose }, picture, h("small", {}, label)),
      bar ?? (is && act("delete", t("library.picture_remove"), drop)),
    );
  };
  const done = (is) => {
    repictured(item.id);
    store.changed();
    draw(is);
  };
  const put = async ([file]) => {
    const bar = progress(t("library.sending"));
    draw(item.has_avatar, bar.element);
    const onprogress = (share) => bar.show(share < 1 ? share : null);
    await attempt(() => api.upload(path, file, { method: "PUT", onprogress }).then(() => done(true)));
    draw();
  };
  const choose = () => pick("image/png,image/jpeg,image/webp,image/gif", put);
  const drop = () =>
    undoable(t("library.picture_removed"), {
      hide: () => draw(false),
      act: async (options) => {
        await api.delete(path, undefined, options);
        done(false);
      },
      show: () => draw(true),
    });
  dropping(box, box, put, signal);
  draw();
  return box;
}
