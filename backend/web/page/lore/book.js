/** One lorebook: its entries, the editor of one, the tester, the settings. */
import { api } from "../core/api.js";
import { attempt, complain, menu, undoable } from "../core/dialogs.js";
import { fill, h, icon, settled } from "../core/dom.js";
import { lorebooks } from "../core/store.js";
import { number, t } from "../core/words.js";
import { act, finder } from "../library/parts.js";
import { actions, holders } from "./books.js";
import { called, editor, place } from "./entry.js";
import { tester } from "./tester.js";

const COUNTED = 50;

/** #/lorebooks/ID; `?entry=` opens an entry, "settings" or "test". */
export default async function ({ params: { id }, query, signal, title }) {
  const path = `/lorebooks/${id}`;
  const book = await api.get(path, { signal });
  const rows = new Map();
  let form;
  let shown;
  let trouble = false;

  const heading = h("h1.clip");
  const list = h("ol.lore-entries", { "aria-label": t("lore.list") });
  const pane = h("section.card.lore-pane", { "aria-label": t("lore.pane") });
  const state = h("p.figure.grow", { role: "status" });
  const also = ["\n"];
  const find = finder(t("lore.find_entry"), (count) => (state.textContent = t("lore.entries", { count })), also);
  const filter = h("select", { "aria-label": t("lore.show"), onchange: () => find.run((also[0] = `\n${filter.value}`)) });
  for (const each of ["", "on\n", "off\n", "always\n"]) filter.append(h("option", { value: each }, t(`lore.shown.${each.trim() || "all"}`)));

  const patch = async (what, address, changes, ifMatch) => {
    // A page on its way out may still send so much.
    const keepalive = JSON.stringify(changes).length < 20_000;
    Object.assign(what, await api.patch(address, changes, { ifMatch, keepalive }));
    trial.run();
    return { ...what };
  };
  const save = async ({ entry, draw }, changes) => {
    const saved = await patch(entry, `${path}/entries/${entry.id}`, changes, entry.revision);
    draw();
    return saved;
  };
  const keep = async (saving) => {
    trouble = true;
    const saved = await saving;
    trouble = false;
    return saved;
  };
  const arrange = settled(() => {
    const entry_ids = [...list.children].map((each) => each.id);
    return attempt(() => api.put(`${path}/entries/order`, { entry_ids }, { keepalive: entry_ids.length < 500 }));
  }, 600);
  signal.addEventListener("abort", arrange.now, { once: true });
  addEventListener("pagehide", arrange.now, { signal });
  const move = (row, to) => {
    const all = [...list.children];
    const from = all.indexOf(row.element);
    if (!all[to] || to === from) return;
    all[to][to > from ? "after" : "before"](row.element);
    state.textContent = t("lore.moved", { place: to + 1 });
    arrange();
  };
  const drop = (row) => {
    const gone = (is) => find.run(row.draw((row.gone = is)));
    if (shown === row) show();
    undoable(t("library.deleted", { name: called(row.entry) }), {
      hide: () => gone(true),
      async act(options) {
        await api.delete(`${path}/entries/${row.entry.id}`, undefined, options);
        row.element.remove();
        lorebooks.changed();
      },
      show: () => gone(false),
    });
  };

  const put = (entry) => {
    const at = () => [...list.children].indexOf(row.element);
    const [name, keys, tokens] = [h("strong.clip"), h("small.soft.clip"), h("span.figure")];
    const toggle = async () => {
      if (shown === row) await form.flush();
      await attempt(() => save(row, { enabled: on.checked }));
      row.draw();
      if (shown === row) form.write(entry);
    };
    const on = h("input", { type: "checkbox", role: "switch", onchange: toggle });
    const onkeydown = (event) => {
      const step = event.altKey && { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      move(row, at() + step);
      open.focus();
    };
    const open = h("button.lore-open", { type: "button", onclick: () => show(entry.id), onkeydown }, name, keys);
    const moves = { up: () => at() - 1, down: () => at() + 1, top: () => 0, bottom: () => list.children.length - 1 };
    const more = act("more", "", () =>
      menu(more, [
        ...Object.entries(moves).map(([way, to]) => ({ label: t(`lore.${way}`), act: () => move(row, to()) })),
        null,
        { label: t("common.delete"), icon: "delete", danger: true, act: () => drop(row) },
      ]), "quiet");
    const element = h("li", { id: entry.id, draggable: "true" }, on, open, tokens, more);
    const item = [element, ""];
    const row = {
      entry,
      element,
      tokens,
      draw() {
        const label = called(entry);
        const { constant, enabled, probability } = entry;
        name.textContent = label;
        keys.textContent = [constant ? t("lore.shown.always") : entry.keys.join(", "), entry.position !== "before_character" && place(entry), probability < 100 && `${probability} %`].filter(Boolean).join(" · ");
        on.checked = enabled;
        on.ariaLabel = t("lore.on", { name: label });
        more.ariaLabel = t("lore.more", { name: label });
        const texts = [label, ...entry.keys, ...entry.secondary_keys, entry.content, enabled ? "on" : "off", constant && "always", ""];
        item[1] = row.gone ? "" : texts.join("\n");
      },
    };
    row.draw();
    rows.set(entry.id, row);
    find.items.push(item);
    list.append(element);
    return row;
  };
  let dragged;
  const over = (event) => rows.get(event.target.closest("li")?.id);
  list.addEventListener("dragstart", (event) => (dragged = over(event)));
  list.addEventListener("dragover", (event) => dragged && event.preventDefault());
  list.addEventListener("drop", (event) => over(event) && move(dragged, [...list.children].indexOf(over(event).element)));

  const show = async (what) => {
    await form?.flush();
    // What could not be saved stays there to be read; who goes on all the same may.
    if (trouble) return void (trouble = false);
    const before = shown;
    before?.element.removeAttribute("aria-current");
    shown = rows.get(what);
    shown?.element.setAttribute("aria-current", "true");
    const address = `#/lorebooks/${id}${what ? `?entry=${what}` : ""}`;
    if (location.hash !== address) history[what && !location.hash.includes("?") ? "pushState" : "replaceState"](null, "", address);
    view.classList.toggle("lore-in", Boolean(what));
    const settings = what === "settings";
    const row = shown;
    form = row ? editor(row.entry, (changes) => keep(save(row, changes)), signal) : settings ? editor(book, (changes) => keep(change(changes)), signal) : null;
    const name = h("h2.grow.clip", { tabindex: "-1" }, row ? called(row.entry) : t(settings ? "lore.settings" : "lore.try"));
    const back = act("left", t("lore.back"), () => show(), "quiet lore-back");
    fill(pane, h("header.row", {}, back, name, row && tries()), form?.element ?? trial.element, settings && linked());
    if (getComputedStyle(pane).position === "static") pane.scrollIntoView();
    if (what) name.focus({ preventScroll: true });
    else before?.element.querySelector("button").focus();
  };
  const change = async (changes) => {
    const saved = await patch(book, path, changes);
    named();
    lorebooks.changed();
    return saved;
  };
  const named = () => title((heading.textContent = book.name));
  const tries = () => act("search", t("lore.try"), () => show("test"));

  /** What the book is linked to, to be added to and taken away. */
  const linked = () => {
    const box = h("section.stack");
    const draw = async () => {
      const all = await holders();
      const have = Object.values(book.links).flat();
      const put = async (holder, is) => {
        const { kind } = all.get(holder);
        const ids = `${kind.slice(0, -1)}_ids`;
        await api[is ? "put" : "delete"](`/${kind}/${holder}${path}`, is && kind === "chats" ? { state: "linked" } : undefined);
        book.links[ids] = is ? [...book.links[ids], holder] : book.links[ids].filter((each) => each !== holder);
        lorebooks.changed();
        await draw();
      };
      const free = [...all].filter(([each, { kind }]) => kind !== "chronicles" && !have.includes(each));
      const choice = h("select", { "aria-label": t("lore.link_to") }, free.map(([each, { kind, name }]) => h("option", { value: each }, `${t(`shell.${kind}`)}: ${name}`)));
      const tag = (each) => {
        const name = all.get(each)?.name;
        return h("li.tag", {}, name, act("close", t("lore.unlink", { name }), () => attempt(() => put(each, false)), "quiet"));
      };
      const add = act("link", t("lore.link"), () => attempt(() => put(choice.value, true)));
      fill(box, h("h3", {}, t("lore.links")), h("ul.row", {}, have.map(tag)), free.length > 0 && h("div.row", {}, h("span.grow", {}, choice), add));
    };
    attempt(draw);
    return box;
  };

  const add = async () => {
    const row = put(await api.post(`${path}/entries`, {}));
    lorebooks.changed();
    await show(row.entry.id);
    pane.querySelector("input").focus();
  };
  const trial = await tester(id, (entry) => show(entry), signal);
  const head = [heading, tries(), act("settings", t("lore.settings"), () => show("settings"), "quiet"), actions(book, () => (location.hash = "#/lorebooks"))];
  const tools = [h("div.row", {}, h("span.grow", {}, find.input), filter), h("div.row", {}, state, act("plus", t("lore.add"), () => attempt(add), "primary"))];
  const view = h(
    "div.page.lore-book",
    {},
    h("header", {}, h("a.button.quiet", { href: "#/lorebooks", "aria-label": t("shell.lorebooks") }, icon("left")), head),
    h("section.stack", {}, tools, list),
    pane,
  );
  named();
  let after;
  const read = async () => {
    const { items, next } = await api.get(`${path}/entries`, { query: { limit: 500, after }, signal });
    after = next;
    return items.map(put);
  };
  const count = async (some) => {
    for (let at = 0; at < some.length; at += COUNTED) {
      const these = some.slice(at, at + COUNTED);
      const { counts } = await api.post("/tokens", { texts: these.map(({ entry }) => entry.content) }, { signal });
      these.forEach((row, place) => (row.tokens.textContent = number(counts[place])));
    }
  };
  const rest = async (some) => {
    while (after) some.push(...(await read()));
    find.run();
    if (query.has("entry") && !shown) show(query.get("entry"));
    await count(some);
  };
  rest(await read()).catch(complain);
  find.run();
  show(query.get("entry"));
  return view;
}
