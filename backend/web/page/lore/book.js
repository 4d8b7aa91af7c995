/** A lorebook: its entries, and beside them an editor, the tester, or the settings. */
import { act, api, attempt, fill, h, icon, lorebooks, t } from "../core.js";
import { actions } from "./books.js";
import { entryList } from "./entries.js";
import { called, editor, patch } from "./entry.js";
import { links } from "./links.js";
import { tester } from "./tester.js";

/** Route: #/lorebooks/ID. `?entry=` opens an entry, "settings" or "test". */
export default async function ({ params: { id }, query, signal, title }) {
  const path = `/lorebooks/${id}`;
  const book = await api.get(path, { signal });
  let shown;
  let form;
  let isUnsaved = false;

  const show = async (what) => {
    await form?.flush();
    // Unsaved input stays visible. The second attempt to leave it succeeds.
    if (isUnsaved) return void (isUnsaved = false);
    const before = shown;
    before?.element.removeAttribute("aria-current");
    shown = list.rows.get(what);
    shown?.element.setAttribute("aria-current", "true");
    const address = `#/lorebooks/${id}${what ? `?entry=${what}` : ""}`;
    const isDeeper = what && !location.hash.includes("?");
    if (location.hash !== address) history[isDeeper ? "pushState" : "replaceState"](null, "", address);
    view.classList.toggle("lore-in", Boolean(what));

    const isSettings = what === "settings";
    form = null;
    if (shown) form = editor(shown.entry, keeping(shown.save), signal);
    if (isSettings) form = editor(book, keeping(saveBook), signal);
    const label = shown ? called(shown.entry) : t(isSettings ? "lore.settings" : "lore.try");
    const name = h("h2.grow.clip", { tabindex: "-1" }, label);
    const back = act("left", t("lore.back"), () => show(), "quiet lore-back");
    const head = h("header.row", back, name, shown && trying());
    fill(pane, head, form?.element ?? trial.element, isSettings && links(book));
    if (getComputedStyle(pane).position === "static") pane.scrollIntoView();
    if (what) name.focus({ preventScroll: true });
    else if (before) list.focus(before);
  };
  const keeping = (save) => async (changes) => {
    isUnsaved = true;
    const saved = await save(changes);
    isUnsaved = false;
    return saved;
  };
  const saveBook = async (changes) => {
    const saved = await patch(path, book, changes);
    named();
    lorebooks.changed();
    trial.run();
    return saved;
  };
  const toggle = async (row, enabled) => {
    if (shown === row) await form.flush();
    await attempt(() => row.save({ enabled }));
    row.draw();
    if (shown === row) form.write(row.entry);
  };
  const add = async () => {
    const row = list.add(await api.post(`${path}/entries`, {}));
    lorebooks.changed();
    await show(row.entry.id);
    pane.querySelector("input").focus();
  };
  const trying = () => act("search", t("lore.try"), () => show("test"));

  const heading = h("h1.clip");
  const named = () => title((heading.textContent = book.name));
  const trial = await tester(id, show, signal);
  const list = await entryList(path, { open: show, add, toggle, changed: trial.run }, signal);
  const pane = h("section.card.lore-pane", { label: t("lore.pane") });
  const view = h(
    "div.page.lore-book",
    h(
      "header",
      h("a.button.quiet", { href: "#/lorebooks", label: t("shell.lorebooks") }, icon("left")),
      heading,
      trying(),
      act("settings", t("lore.settings"), () => show("settings"), "quiet"),
      actions(book, () => (location.hash = "#/lorebooks")),
    ),
    list.element,
    pane,
  );
  named();
  show(query.get("entry"));
  return view;
}
