/** Import of chosen, dropped or pasted files, with one row per file for its progress. */
import { Problem } from "./api.js";
import { complain, explain } from "./dialogs.js";
import { act, h, icon, refill } from "./dom.js";
import { progress } from "./form.js";
import { t } from "./words.js";

const LARGEST = 20 * 1024 * 1024;

/**
 * Files are uploaded one after the other, because the server limits concurrent imports per account.
 */
let queue = Promise.resolve();

/** Let the user choose files. */
export function pick(accept, take, multiple = false) {
  h("input", { type: "file", accept, multiple, onchange: ({ target }) => take([...target.files]) }).click();
}

/** Accept files that are dropped on `target`. `element` shows that they can be dropped. */
export function dropping(target, element, take, signal) {
  let timer;
  const over = (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    element.classList.toggle("dropping", event.type === "dragover");
    clearTimeout(timer);
    timer = setTimeout(() => element.classList.remove("dropping"), 400);
    if (event.type === "drop") take([...event.dataTransfer.files]);
  };
  target.addEventListener("dragover", over, { signal });
  target.addEventListener("drop", over, { signal });
}

/**
 * An importer for files of one kind. It continues when the user leaves the view, and every view
 * that contains its `element` shows it.
 *
 * @param {object} options `accept`: the file types; `drop`: the text while files are held over the
 *   view; `send(file, { onprogress, signal }, to)`: returns a promise for `[text, icon, button]` of
 *   the finished row. The default icon is a tick, and there is no default button.
 * @returns {{element, choose, at}} `choose(to)` lets the user choose files; `at(view, signal, to)`
 *   accepts files that are dropped on a view or pasted into it. `to` is passed to `send`.
 */
export function importing({ accept, drop, send }) {
  const rows = h("ul.list");
  const state = h("p.grow", { role: "status" });
  const tidy = (which) => {
    rows.querySelectorAll(which).forEach((row) => row.remove());
    count();
  };
  const clear = act("check", t("files.clear"), () => tidy("li:not(.busy)"));
  const element = h("section.card.imports", { "aria-label": t("files.imports"), hidden: true },
    h("div.row", {}, state, clear), rows);

  const count = () => {
    const found = (state) => rows.querySelectorAll(`.${state}`).length;
    const [busy, done, refused] = ["busy", "done", "refused"].map(found);
    const total = rows.children.length;
    element.hidden = !total;
    clear.hidden = total === busy;
    state.textContent = t(refused ? "files.imported_but" : "files.imported", { done, total, refused });
  };
  const add = (file, to) => {
    const { name } = file;
    const label = h("p.clip", {}, name);
    const row = h("li");
    const show = (as, sign, text, button) => {
      row.className = as;
      refill(row, sign, h("div.grow", {}, text), button);
      count();
    };
    const failed = (as, text) =>
      show(as, icon("alert"), [label, h("small", {}, text)],
        act("again", t("files.retry", { name }), start, "quiet"));
    const start = () => {
      const leaving = new AbortController();
      const { signal } = leaving;
      const bar = progress(t("files.importing", { name }));
      const cancel = () => {
        leaving.abort();
        failed("stopped", t("files.cancelled"));
      };
      const onprogress = (share) => (share < 1 ? bar.show(share) : bar.show(null, t("files.reading")));
      bar.show(0, t("files.waiting"));
      show("busy", icon("upload"), [label, bar.element],
        act("close", t("files.cancel", { name }), cancel, "quiet"));
      const bring = async () => {
        if (signal.aborted) return;
        try {
          if (file.size > LARGEST) throw new Problem({ title: t("files.too_large") });
          const [what, sign = icon("check"), button] = await send(file, { onprogress, signal }, to);
          show("done", sign, what, button);
        } catch (error) {
          if (signal.aborted) return;
          failed("refused", explain(error));
          rows.prepend(row);
        }
      };
      queue = queue.then(bring).catch(complain);
    };
    rows.append(row);
    start();
  };
  const take = (to) => (files) => files.forEach((file) => add(file, to));

  return {
    element,
    choose: (to) => pick(accept, take(to), true),
    at(view, signal, to) {
      // Finished rows are removed. Failed ones can be tried again.
      tidy("li.done");
      view.dataset.drop = drop;
      dropping(window, view, take(to), signal);
      addEventListener("paste", ({ clipboardData }) => take(to)([...clipboardData.files]), { signal });
    },
  };
}
