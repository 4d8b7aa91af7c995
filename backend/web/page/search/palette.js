/** One search field: chats, characters and settings as the user types, then texts on the server. */
import {
  campaigns, characters, chats, chronicles, combine, complain, dialog, fill, h, icon, lorebooks,
  on, searchMemory, session, set, settled, style, t, texts,
} from "../core.js";
import { finding, passage } from "../core/passage.js";
import { face } from "../library/faces.js";

const MOST = 6;
const FOUND = 24;
const SHOWN = 160;
const SHORTEST = 2;

/** The kinds of texts: icon, list of the container, and name in addresses. */
const KINDS = {
  message: ["chat", "chats", "at"],
  lore: ["book", "lorebooks", "entry"],
  event: ["memory", "chronicles", "event"],
  campaign: ["world", "campaigns", "item"],
};

/** Places of settings, with the paths of the texts that are shown there. */
const SETTINGS = {
  settings: /^(settings|page|replies)\.|^account\.(theme|light|dark|sepia|night|reading|persona_id|preset_id|lore_mode|system_prompt|budgets|quick_replies)$/,
  providers: /^models\./,
  "memory-settings": /^memory\.(status|models)\.|^account\.memory_search/,
  presets: /^presets\./,
  scripts: /^scripts\./,
  imports: /^(imports|archive|files)\./,
  clients: /^clients\./,
  security: /^account\.(mode|change|renew|rotate|factors|app|codes|add_passkey|sessions|keys|recent)(_|$)/,
  server: /^account\.(phones|invitations|people)(_|$)/,
  account: /^account\.(usage|month|monthly|remove)(_|$)/,
};

/** All texts with their paths, without those that have values. */
const flat = (found, path) =>
  typeof found === "string"
    ? found.split(" | ").filter((each) => !/[{}]/.test(each)).map((each) => [path, each])
    : Object.entries(found).flatMap(([name, each]) => flat(each, path ? `${path}.${name}` : name));

/** `[title, search texts, option]` of each place of settings. */
function places() {
  const all = flat(texts, "");
  const titles = { ...texts.settings.areas, account: t("shell.account") };
  if (!session.user.is_administrator) delete titles.server;
  return Object.entries(titles).map(([name, title]) => {
    const known = all.filter(([path]) => SETTINGS[name]?.test(path)).map(([, text]) => text);
    known.push(...texts.search.keywords[name].split(", "));
    known.sort((a, b) => a.length - b.length);
    const option = (fits) => {
      const note = !fits(title) && known.find(fits);
      return hit({ href: `#/${name}`, sign: icon("settings"), title, note });
    };
    return [title, [title, ...known], option];
  });
}

let ids = 0;

/** A result: a link that is chosen with the arrow keys while the focus stays in the field. */
const hit = ({ href, sign, title, note }) =>
  h("a.hit", { role: "option", id: `hit${++ids}`, href, tabindex: -1, "aria-selected": "false" },
    sign, h("span.grow", h("span.clip", title), note && h("small.clip", note)));

const group = (label, options) =>
  options.length > 0 && h("div", { role: "group", label }, h("small", { "aria-hidden": "true" }, label), options);

/** Lists that are searched by their names: label, icon, items, and their places. */
async function named() {
  const quiet = (store) => store.all().catch(() => []);
  const [talks, people, books, worlds, tales] = await Promise.all([chats, characters, lorebooks, campaigns, chronicles].map(quiet));
  const names = new Map(people.map((each) => [each.id, each.nickname || each.name]));
  const cast = ({ character_ids }) => combine(character_ids.map((id) => names.get(id)), ", ");
  const rows = (place, items, sign, note = () => "") => items.map((item) => {
    const title = item.title ?? item.name;
    const shown = title || t("chats.untitled");
    return [shown, [shown, note(item)], () => hit({ href: `#/${place}/${item.id}`, sign: sign(item), title: shown, note: note(item) })];
  });
  return {
    titles: new Map([...talks, ...books, ...worlds, ...tales].map((each) => [each.id, each.title ?? each.name])),
    groups: [
      [t("shell.chats"), rows("chats", talks, () => icon("chat"), cast)],
      [t("shell.characters"), rows("characters", people, (item) => face(item, { small: true }), ({ tags }) => tags.slice(0, 6).join(" · "))],
      [t("library.books"), rows("lorebooks", books, () => icon("book"))],
      [t("campaign.campaigns"), rows("campaigns", worlds, () => icon("world"))],
      [t("settings.title"), places()],
    ],
  };
}

/** The items of a list that match. Those with a match in their name, or in a short text, come first. */
function matches(rows, typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text) => words.every((word) => text.toLowerCase().includes(word));
  const rank = ([title, known]) => {
    if (title.toLowerCase().startsWith(typed.toLowerCase())) return 0;
    if (fits(title)) return 1;
    return known.length > 2 ? 2 + known.find(fits).length : 2;
  };
  const found = rows.filter(([, known]) => known.some(fits));
  return found.sort((a, b) => rank(a) - rank(b)).slice(0, MOST).map(([, , option]) => option(fits));
}

function content(close, signal) {
  let lists = { titles: new Map(), groups: [] };
  const near = h("div");
  const far = h("div");
  const list = h("div.hits", { id: "hits", role: "listbox", label: t("search.results") }, near, far);
  const state = h("p.soft", { role: "status" });
  let active = null;

  const options = () => [...list.querySelectorAll("a")];
  const point = (option) => {
    if (active) set(active, { "aria-selected": "false" });
    active = option ?? null;
    if (active) set(active, { "aria-selected": "true" });
    set(input, { "aria-activedescendant": active?.id });
    active?.scrollIntoView({ block: "nearest" });
  };
  const typed = () => input.value.trim();

  const ask = settled(async () => {
    const q = typed();
    let answer;
    try {
      answer = await searchMemory({ q, limit: FOUND }, signal);
    } catch (error) {
      if (q === typed()) fill(state);
      return complain(error);
    }
    if (q !== typed()) return;
    const find = finding(q);
    const row = (it) => {
      const [sign, place, key] = KINDS[it.kind];
      const home = lists.titles.get(it.container_id);
      const title = it.kind === "message" ? combine([home, it.title]) : it.title || home;
      const href = `#/${place}/${it.container_id}?${key}=${it.position ?? it.source_id}`;
      return hit({ href, sign: icon(sign), title, note: passage(it.text, find, SHOWN) });
    };
    const of = (kind) => answer.items.filter((it) => it.kind === kind).slice(0, MOST).map(row);
    fill(far, Object.keys(KINDS).map((kind) => group(t(`memory.places.${kind}`), of(kind))));
    const count = options().length;
    fill(state, count ? t("search.count", { count }) : t("search.nothing"));
  }, 350, signal);

  const draw = () => {
    const words = typed();
    const found = lists.groups.map(([label, rows]) => group(label, matches(rows, words)));
    fill(near, words ? found : found.slice(0, 2));
    fill(far);
    point(null);
    ask.drop();
    const asks = words.length >= SHORTEST;
    fill(state, asks && t("search.looking"));
    if (asks) ask();
  };

  const onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = options();
    if (step) {
      event.preventDefault();
      const at = all.indexOf(active);
      point(all.at(at < 0 && step < 0 ? -1 : (at + step) % all.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      (active ?? all[0])?.click();
    } else if (event.key === "Escape") {
      // By default, the first one would only empty the field.
      event.preventDefault();
      close();
    }
  };
  const input = h("input", {
    type: "search", role: "combobox", autofocus: true, autocomplete: "off", maxlength: 200,
    label: t("search.title"), "aria-expanded": "true", "aria-controls": "hits", "aria-autocomplete": "list",
    placeholder: t("search.placeholder"), oninput: draw, onkeydown,
  });
  on(list, "click", (event) => event.target.closest("a") && close());
  draw();
  named().then((found) => {
    lists = found;
    draw();
  });
  return h("div.stack.search", input, list, state);
}

/** Open the search field. The promise resolves when it is closed. */
export default async function () {
  const leaving = new AbortController();
  await style("search");
  await dialog(t("search.title"), (close) => content(close, leaving.signal), { wide: true });
  leaving.abort();
}
