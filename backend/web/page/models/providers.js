/** Route: #/providers */
import {
  act, api, attempt, combine, deleting, dialog, explained, fill, h, isPending, more, on, Problem,
  sendform, sendLater, session, t, toast,
} from "../core.js";
import { json, mergePatch } from "../core/json.js";
import { areas } from "../account/parts.js";
import { NAME } from "../library/parts.js";
import { allowed } from "./addresses.js";
import { chosen } from "./chosen.js";
import { offers } from "./local.js";
import { ADDRESS, adding, KEY, MODELS, PATH, refused, test } from "./parts.js";
import { m } from "./picker.js";

/** A header as it is shown: only the end of its value, if the value is long enough. */
const shown = (name, hint) => `${name}: …${hint ?? ""}`;

/** Return a patch of headers from their lines. Unchanged lines keep their value. */
function headersOf(lines, before) {
  const patch = Object.fromEntries(Object.keys(before).map((name) => [name, null]));
  for (const line of lines.map((each) => each.trim())) {
    const [, name, value] = /^([^:\s]+):(.*)$/.exec(line) ?? [];
    const message = m("header_form", { line });
    if (!name) throw new Problem({ title: message, errors: [{ member: "extra_headers", message }] });
    if (name in before && line === shown(name, before[name])) delete patch[name];
    else patch[name] = value.trim();
  }
  return patch;
}

/** Pairs of tags, from lines with an opening and a closing tag. */
const tagsOf = (lines) =>
  lines.map((line) => {
    const [opening, closing, ...rest] = line.trim().split(/\s+/);
    const message = m("tags_form", { line });
    if (!closing || rest.length) throw new Problem({ title: message, errors: [{ member: "thought_tags", message }] });
    return { opening, closing };
  });

/** Edit a provider. Its key is kept unless a new one is entered. Returns true once it is stored. */
const edit = (provider) =>
  dialog(m("edit_named", { name: provider.name }), (close) => {
    const { id, name, base_url: url, key_hint: hint, models, revision, scope } = provider;
    const { extra_headers: headers, extra_body: body, embedding_model: embedding } = provider;
    const { reads_thoughts: reads, thought_tags: tags } = provider;
    const { concurrency, usual_concurrency: usual } = provider;
    const fields = [
      { ...NAME, most: 100, value: name },
      { ...KEY, help: hint ? m("key_kept", { hint }) : m("key_stays") },
      { ...ADDRESS, value: url },
      { ...MODELS, value: models.map((each) => each.name) },
      { name: "extra_headers", kind: "lines", label: m("headers"), help: m("headers_help"),
        value: Object.entries(headers).map((each) => shown(...each)) },
      { name: "extra_body", label: m("body"), help: m("body_help"), control: json, value: Object.keys(body).length ? body : null },
      { name: "reads_thoughts", kind: "check", label: m("reads_thoughts"), help: m("reads_thoughts_help"), value: reads },
      { name: "thought_tags", kind: "lines", label: m("tags"), help: m("tags_help"),
        value: tags.map(({ opening, closing }) => `${opening} ${closing}`) },
      { name: "concurrency", kind: "number", step: 1, min: 0, max: 100, value: concurrency, label: m("concurrency"),
        help: `${m("concurrency_help")} ${m(usual ? "concurrency_usual" : "concurrency_any", { count: usual })}` },
      scope === "installation" && { name: "embedding_model", label: m("embedding"), help: m("embedding_help"), value: embedding, most: 200 },
    ].filter(Boolean);
    const report = h("div.stack");
    const send = async ({ api_key: key, base_url: address, models: names, ...patch }) => {
      fill(report);
      // Known settings of a model are kept.
      patch.models = names.map((each) => models.find((known) => known.name === each) ?? { name: each });
      patch.base_url = address || null;
      patch.thought_tags = tagsOf(patch.thought_tags);
      patch.extra_headers = headersOf(patch.extra_headers, headers);
      patch.extra_body = mergePatch(body, patch.extra_body ?? {});
      if ("embedding_model" in patch) patch.embedding_model ||= null;
      if (key) patch.api_key = key;
      try {
        await api.patch(`${PATH}/${id}`, patch, { ifMatch: revision });
      } catch (error) {
        if (!error.body?.address) throw error;
        const again = () => element.requestSubmit();
        const use = (better) => {
          controls.get("base_url").write(better);
          again();
        };
        return refused(error, report, { url: address, use, again });
      }
      close(true);
    };
    const { element, controls } = sendform({ fields, submit: t("common.save"), send, extra: report });
    return element;
  });

/** Test a provider, and show the result in a dialog. */
const tested = ({ id, name }) =>
  dialog(m("test_named", { name }), () => {
    const box = h("div.stack");
    const run = () => test(() => api.post(`${PATH}/${id}/test`, {}), box, { again: run })
      .catch((error) => fill(box, h("div.trouble", { role: "alert" }, explained(error))));
    run();
    return box;
  });

export default async function ({ signal, title, query }) {
  title(m("providers"));
  const list = h("ul.list", { label: m("providers") });
  const empty = h("div.empty", h("p", m("none")));
  let items;
  const draw = () => {
    const shown = items.filter(({ id }) => !isPending(`${PATH}/${id}`));
    empty.hidden = shown.length > 0;
    fill(list, shown.map(line));
  };
  const read = async () => {
    items = await api.all(PATH, { signal });
    draw();
  };
  on(window, "pending", draw, signal);
  const line = (item) => {
    const { id, name, slug, models, base_url: url, key_hint: hint, scope, is_editable: mine, revision: ifMatch } = item;
    const then = (does) => () => attempt(async () => (await does(item)) && read());
    const remove = () => sendLater(t("common.deleted", { name }), `${PATH}/${id}`, { ifMatch });
    const facts = combine([m(`scopes.${scope}`), url, hint && m("key_hint", { hint })]);
    const names = models.map((each) => each.name).join(", ") || m("all");
    return h("li",
      h("div.grow",
        h("div.clip", name, name !== slug && h("span.soft", ` (${slug})`),
          item.failed_test && [" ", h("span.tag", m("not_tested"))]),
        h("small.help", facts),
        h("small.help.clip", { title: names }, names)),
      mine && more(m("more", { name }), [
        { label: m("test"), icon: "check", act: () => attempt(async () => (await tested(item), read())) },
        { label: t("common.edit"), icon: "edit", act: then(edit) },
        { label: m("models"), icon: "layers", act: then(chosen) },
        deleting(remove)]));
  };
  const add = () => attempt(async () => {
    let close;
    const form = await adding(() => close(), signal);
    await dialog(m("add"), (end) => {
      close = end;
      return form;
    });
    await read();
  });
  /** Show the details of a model, by its id. */
  const show = (id) => attempt(async () => {
    history.replaceState(null, "", "#/providers");
    const slug = id.split("/", 1)[0];
    const provider = items.find((each) => each.slug === slug);
    if (!provider?.is_editable) return toast(m(provider ? `fixed.${provider.scope}` : "fixed.gone", { model: id }), { kind: "error" });
    if (await chosen(provider, id.slice(slug.length + 1))) await read();
  });
  await read();
  const addresses = session.user.is_administrator && (await allowed(signal));
  if (query.has("model")) setTimeout(() => show(query.get("model")));
  return h("div.page.narrow",
    h("header", h("h1", m("providers")), act("plus", m("add"), add, "primary")),
    areas("providers"),
    h("p.soft.lead", m("help")), offers(() => attempt(read), signal), empty, list, addresses);
}
