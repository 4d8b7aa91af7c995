/** Import of chosen, dropped or pasted files, with one row per file for its progress. */
import { Problem } from "./api.js";
import { complain, explain } from "./dialogs.js";
import { act, fill, h, icon, on } from "./dom.js";
import { progress } from "./form.js";
import { t } from "./words.js";

const LARGEST = 20 * 1024 * 1024;

/** Imports run one after the other, because the server limits concurrent imports per account. */
let queue = Promise.resolve();

const rows = h("ul.list");
const state = h("p.grow", { role: "status" });
const clear = act("check", t("files.clear"), () => tidy("li:not(.busy)"));

/** All imports of this page. The frame shows them above every view. */
export const imports = h("section.card.imports", { label: t("files.imports"), hidden: true },
  h("div.row", state, clear), rows);

function tidy(which) {
  rows.querySelectorAll(which).forEach((row) => row.remove());
  count();
}

/** Remove the rows of imports that have succeeded. */
export const forget = () => tidy("li.done");

// Files that are not uploaded yet are lost with the page.
on(window, "beforeunload", (event) => rows.querySelector(".busy:not(.sent)") && event.preventDefault());

function count() {
  const found = (state) => rows.querySelectorAll(`.${state}`).length;
  const [busy, done, partial, refused] = ["busy", "done", "partial", "refused"].map(found);
  const total = rows.children.length;
  imports.hidden = !total;
  clear.hidden = total === busy;
  state.textContent = t(refused ? "files.imported_but" : "files.imported", { done: done + partial, total, refused });
}

/**
 * Add a row for an import, and run it after those before it.
 *
 * @param {string} name The name of the file.
 * @param {function} run Gets `{ onprogress(share, text), signal, stopping, resume }` and returns a
 *   promise for `{ text, sign, button, state }` of the row at its end: `sign` is a tick by default,
 *   `state` is "done", or one of those that stay until they are cleared: "partial", "stopped" and
 *   "refused". `stopping(stop, follow)` is called once the server has the file: the button calls
 *   `stop` instead of cancelling, and a retry runs `follow`. `resume(run)` runs something else in
 *   the row.
 * @param {boolean} isSent True if the server works on the import already, so that it runs at once.
 */
export function track(name, run, isSent = false) {
  const label = h("p.clip", name);
  const row = h("li");
  const show = (as, sign, text, button) => {
    row.className = as;
    fill(row, sign, h("div.grow", text), button);
    count();
  };
  let next = run;
  const fail = (as, text) =>
    show(as, icon("alert"), [label, h("small", text)],
      act("again", t("files.retry", { name }), () => resume(next), "quiet"));
  const resume = (run) => {
    const leaving = new AbortController();
    const { signal } = leaving;
    const bar = progress(t("files.importing", { name }));
    const work = (button, as = "busy") => show(as, icon("upload"), [label, bar.element], button);
    const cancel = () => {
      leaving.abort();
      fail("stopped", t("files.cancelled"));
    };
    const stopping = (stop, follow) => {
      next = follow;
      work(act("stop", t("files.stop", { name }), stop, "quiet"), "busy sent");
    };
    const onprogress = (share, text) =>
      share < 1 || text ? bar.show(share, text) : bar.show(null, t("files.reading"));
    bar.show(0, t("files.waiting"));
    work(act("close", t("files.cancel", { name }), cancel, "quiet"));
    const bring = async () => {
      if (signal.aborted) return;
      try {
        const { text, sign = icon("check"), button, state = "done" } =
          await run({ onprogress, signal, stopping, resume });
        show(state, sign, text, button);
        if (state !== "done") rows.prepend(row);
      } catch (error) {
        if (signal.aborted) return;
        fail("refused", explain(error));
        rows.prepend(row);
      }
    };
    if (isSent) bring().catch(complain);
    else queue = queue.then(bring).catch(complain);
  };
  rows.append(row);
  resume(run);
}

/** Let the user choose files. */
export function pick(accept, take, multiple = false) {
  h("input", { type: "file", accept, multiple, onchange: ({ target }) => take([...target.files]) }).click();
}

/** Return the files of a drop. Folders are marked, because browsers cannot read them as files. */
function filesOf({ items, files }) {
  const entries = [...items].filter(({ kind }) => kind === "file").map((item) => item.webkitGetAsEntry());
  return [...files].map((file, at) => Object.assign(file, { isFolder: entries[at]?.isDirectory }));
}

/** Accept files that are dropped on `target`. `element` shows that they can be dropped. */
export function dropping(target, element, take, signal) {
  let timer;
  const over = (event) => {
    const dialog = document.querySelector("dialog[open]");
    if (!event.dataTransfer.types.includes("Files") || (dialog && !dialog.contains(element))) return;
    event.preventDefault();
    event.stopPropagation();
    element.classList.toggle("dropping", event.type === "dragover");
    clearTimeout(timer);
    timer = setTimeout(() => element.classList.remove("dropping"), 400);
    if (event.type === "drop") take(filesOf(event.dataTransfer));
  };
  on(target, "dragover", over, signal);
  on(target, "drop", over, signal);
}

/** Importers of files that are dropped anywhere. The last one belongs to the view. */
const takers = [];

/** Accept files that are dropped on the page or pasted into it. `frame` shows that they can be. */
export function receive(frame) {
  const taker = () => takers.at(-1);
  on(window, "dragenter", () => (frame.dataset.drop = taker().drop));
  dropping(document, frame, (files) => taker().take(files));
  on(window, "paste", ({ clipboardData, target }) => {
    // A text that is copied from a document brings a picture of itself.
    if (!target.closest("input, textarea, dialog")) taker().take([...clipboardData.files]);
  });
}

/**
 * An importer for files of some kinds. An import continues when the user leaves the view.
 *
 * @param {object} options `accept`: the file types; `drop`: the text while files are held over the
 *   page; `largest`: the limit in bytes; `send(file, row, to)`: returns a promise for the end of
 *   the row, and gets what `track` gives to `run`.
 * @returns {{choose, at}} `choose(to)` lets the user choose files; `at(signal, to)` accepts files
 *   that are dropped anywhere until the signal aborts. `to` is passed to `send`.
 */
export function importing({ accept, drop, largest = LARGEST, send }) {
  const add = (file, to) =>
    track(file.name, (row) => {
      if (file.isFolder) throw new Problem({ title: t("files.folder") });
      if (file.size > largest) throw new Problem({ title: t("files.too_large") });
      return send(file, row, to);
    });
  const takes = (to) => (files) => files.forEach((file) => add(file, to));
  return {
    choose: (to) => pick(accept, takes(to), true),
    at(signal, to) {
      const taker = { drop, take: takes(to) };
      takers.push(taker);
      signal?.addEventListener("abort", () => takers.splice(takers.indexOf(taker), 1));
    },
  };
}
