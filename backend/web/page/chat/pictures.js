/** Pictures of messages: attach them to the next line, and show them in place and in full. */
import { act, api, complain, dialog, fill, h, icon, kept, on, Problem, progress, t } from "../core.js";
import { dropping, pick } from "../core/importing.js";
import { TYPES } from "../core/picture.js";

const MOST = 8; // files of a line
/** The text that the server gives to a line that has only pictures. */
const ALONE = "[image]";

const isPicture = ({ media_type: type }) => TYPES.includes(type);
const source = ({ id }) => api.url(`/files/${id}`);

/** The text of a message, "" if it has only pictures. */
export const wording = ({ text, files }) => (files?.length && text === ALONE ? "" : text);

/** The text to store for an edited message, which may have only pictures. */
export const worded = (text, { files }) => (files?.length && !text.trim() ? ALONE : text);

/** The pictures of a message, and links to its other files. */
export function gallery({ files = [], author }) {
  const picture = (file) => {
    const alt = t("pictures.alt", { name: file.name, author });
    const { width, height } = file;
    const open = () => dialog(file.name, () => h("img.enlarged", { src: source(file), alt }), { wide: true });
    return h("button.picture", { title: t("pictures.open"), onclick: open },
      h("img", { src: source(file), alt, width, height, loading: "lazy" }));
  };
  const link = (file) => h("a.button", { href: source(file), download: file.name }, icon("download"), file.name);
  return files.length > 0 && h("div.pictures", files.map((file) => (isPicture(file) ? picture(file) : link(file))));
}

/**
 * Attach pictures to the line in `area`. They are kept with its draft.
 *
 * @returns {{element, button, files, tokens, pending, clear, over}} `element` shows them, `button`
 *   lets the user choose some. `files` are the ids for the turn, `pending` is true during uploads.
 *   `over(place)` accepts pictures that are dropped on an element. After each change, the area gets
 *   an "input" event.
 */
export function attaching(room, area) {
  const name = `pictures.${room.chat.id}`;
  let files = kept.get(name, []);
  const uploads = new Map();

  const list = h("ul.attached", { label: t("pictures.attached") });
  const blind = h("p.soft", { role: "status" });
  const item = (file) =>
    h("li",
      h("img", { src: source(file), alt: file.name, title: `${file.name} · ${t("common.tokens", { count: file.tokens })}` }),
      act("close", t("pictures.remove", { name: file.name }), () => change(files.filter((each) => each !== file)), "quiet"));
  const draw = () => {
    const held = list.contains(document.activeElement);
    fill(list, files.map(item), [...uploads.values()]);
    if (held && !list.children.length) area.focus();
    list.hidden = !list.children.length;
    blind.textContent = files.some(({ tokens }) => !tokens) ? t("pictures.blind") : "";
  };
  const tell = () => {
    draw();
    area.dispatchEvent(new Event("input", { bubbles: true }));
  };
  function change(now) {
    files = now;
    kept.set(name, files.length ? files : null);
    tell();
  }

  /** Uploads run one after the other, so that the pictures stay in order. */
  let queue = Promise.resolve();
  function upload(file) {
    const bar = progress(t("pictures.uploading", { name: file.name }));
    const leaving = new AbortController();
    const signal = AbortSignal.any([room.signal, leaving.signal]);
    const drop = () => {
      uploads.delete(file);
      tell();
    };
    const cancel = () => {
      leaving.abort();
      drop();
    };
    const send = async () => {
      if (signal.aborted) return;
      try {
        const found = await api.upload(`/chats/${room.chat.id}/files`, file, { onprogress: (share) => bar.show(share), signal });
        uploads.delete(file);
        change([...files.filter(({ id }) => id !== found.id), found]);
      } catch (error) {
        if (signal.aborted) return;
        drop();
        complain(error);
      }
    };
    uploads.set(file, h("li", bar.element, act("close", t("files.cancel", { name: file.name }), cancel, "quiet")));
    tell();
    queue = queue.then(send);
  }

  function add(chosen) {
    const good = chosen.filter(({ type }) => TYPES.includes(type));
    const free = MOST - files.length - uploads.size;
    if (good.length < chosen.length) complain(new Problem({ title: t("pictures.wrong") }));
    if (good.length > free) complain(new Problem({ title: t("pictures.most", { limit: MOST }) }));
    good.slice(0, Math.max(0, free)).forEach(upload);
  }

  on(area, "paste", (event) => {
    const { files: pasted, types } = event.clipboardData;
    // A text that is copied from a document brings a picture of itself.
    if (!pasted.length || types.includes("text/plain")) return;
    event.preventDefault();
    add([...pasted]);
  });
  draw();
  return {
    element: h("div", list, blind),
    button: act("picture", t("pictures.attach"), () => pick(TYPES.join(), add, true), "quiet"),
    clear: () => change([]),
    over: (place) => dropping(place, place, add, room.signal),
    get files() {
      return files.map(({ id }) => id);
    },
    /** The tokens of all pictures, an estimate. */
    get tokens() {
      return files.reduce((sum, { tokens }) => sum + tokens, 0);
    },
    get pending() {
      return uploads.size > 0;
    },
  };
}
