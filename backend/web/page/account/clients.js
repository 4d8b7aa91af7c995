/** Other apps that play chats through the OpenAI-compatible endpoint. */
import { copy } from "../chat/actions.js";
import { patchOf } from "../chat/fields.js";
import {
  act, api, attempt, autoform, combine, fill, h, has, icon, labels, on, pend, sendLater, t, timed,
} from "../core.js";
import { makeKey } from "./keys.js";
import { areas, button } from "./parts.js";

const SETTINGS = "/me/settings";
/** The values of each setting. The first one is the default. */
const VALUES = {
  system_messages: ["instead", "before"],
  chronicle: [false, true],
  auto: [true, false],
  unknown_characters: ["plain", "create"],
  unknown_parameters: ["ignore", "pass_on"],
};

const c = (name, values) => t(`clients.${name}`, values);
const note = (name) => has(`clients.${name}_help`) && h("small.help", c(`${name}_help`));
const part = (name, ...content) =>
  h("section.stack", h("div", h("h2", c(name)), note(name)), content);

/** A text to enter in another app, with a button that copies it. */
const entry = (text, about) =>
  h("li",
    h("div.grow", h("code.clip", text), about && h("small.help", about)),
    act("copy", c("copy", { text }), () => copy(text), "quiet"));

/** The settings of the endpoint, saved automatically. */
async function settingsForm(signal) {
  let settings = await api.get(SETTINGS, { signal });
  const field = (kind, name, more) => ({ kind, name: `client.${name}`, ...labels(c(name)), wide: true, ...more });
  const made = ([name, values]) => values.includes(true)
    ? field("check", name)
    : field("select", name, { options: values.map((value) => [value, c(`options.${value}`)]) });
  const fields = Object.entries(VALUES).map(made);
  const value = Object.fromEntries(Object.entries(VALUES).map(([name, [usual]]) =>
    [`client.${name}`, settings.client?.[name] ?? usual]));
  const save = async (changes) => {
    settings = await api.patch(SETTINGS, patchOf(changes, settings), { keepalive: true });
  };
  return autoform({ groups: [{ fields }], signal, value, save }).element;
}

/** The counts of a request that are not 0. */
const counts = (request) =>
  ["lines", "matched", "stored", "edited", "hidden"]
    .filter((name) => request[name] > 0)
    .map((name) => c(`counts.${name}`, { count: request[name] }));

/** A request with the decision about it, and a button that corrects it. */
function row(request, again) {
  const { id, kind, reason, text, rule, chat_id: chat, ignored } = request;
  const other = kind === "quiet" ? "turn" : "quiet";
  const path = `/client-requests/${id}/correction`;
  const json = { kind: other };
  const then = ({ outcome }) => again(c(`outcomes.${outcome}`));
  const remove = () => sendLater(c("remove_help"), path, { method: "POST", json, then });
  const correct = () => attempt(async () => then(await api.post(path, json)));
  const facts = [request.model, request.client, ...counts(request), c("took", { count: request.milliseconds })];
  return pend(h("li",
    h("div.grow",
      h("div", h("b", c(`kinds.${kind}`)), ". ", c(`reasons.${reason}`)),
      text && h("q.clip", text),
      h("small.help", combine(facts)),
      ignored.length > 0 && h("small.help", c("ignored", { names: ignored.join(", ") })),
      rule && h("small.help", icon("check"), c(`rules.${rule}`))),
    timed(request.at, "help"),
    chat && h("a.button", { href: `#/chats/${chat}` }, c("open_chat")),
    request.is_correctable && rule !== other &&
      h("button", { onclick: other === "quiet" ? remove : correct }, c(`correct.${other}`))), path, "POST");
}

/** The last requests. They are read again when the user returns to the page. */
function requests(signal, onchange) {
  const list = h("ul.list", { label: c("requests") });
  const said = h("p.soft", { role: "status" });
  const read = async (outcome) => {
    const { items } = await api.get("/client-requests", { signal });
    fill(list, items.map((each) => row(each, corrected)));
    fill(said, outcome ?? (!items.length && c("no_requests")));
  };
  const corrected = (outcome) => Promise.all([read(outcome), onchange()]);
  const look = () => !document.hidden && read().catch(() => {});
  on(document, "visibilitychange", look, signal);
  on(window, "focus", look, signal);
  attempt(read);
  return { section: part("requests", said, list), read };
}

/** The corrections, which can be deleted. */
function rules(signal, onchange) {
  const list = h("ul.list", { label: c("corrections") });
  const section = part("corrections", list);
  const read = async () => {
    const items = await api.all("/client-rules", { signal });
    section.hidden = !items.length;
    fill(list, items.map(({ id, kind, text }) => {
      const path = `/client-rules/${id}`;
      const then = () => signal.aborted || Promise.all([read(), onchange()]);
      const drop = () => sendLater(t("common.deleted", { name: text }), path, { then });
      return pend(h("li",
        h("div.grow", h("q.clip", text), h("small.help", c(`rules.${kind}`))),
        act("delete", c("drop", { text }), drop, "quiet")), path);
    }));
  };
  section.hidden = true;
  attempt(read);
  return { section, read };
}

/** Route: #/clients */
export default async function ({ signal, title }) {
  title(c("title"));
  const latest = requests(signal, () => corrections.read());
  const corrections = rules(signal, () => latest.read());
  const [models, form] = await Promise.all([api.all("/client-models", { signal }), settingsForm(signal)]);
  return h("div.page.narrow",
    h("header", h("h1", c("title"))),
    areas("clients"),
    h("p.soft.lead", c("about")),
    part("address", h("ul.list", entry(`${location.origin}/v1`)), h("div", button("make_key", makeKey))),
    part("models", h("ul.list", { label: c("models") }, models.map(({ id, name }) => entry(id, name)))),
    part("options_title", form),
    latest.section,
    corrections.section);
}
