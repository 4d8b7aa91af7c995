/** Models for background tasks: fields of an account and of a chat. */
import { control, h, labels } from "../core.js";
import { m, picker } from "./picker.js";

const TASKS = ["triage", "agent", "summary", "suggestions", "compaction"];
const EMBEDS = /embed|bge|gte-|e5-|minilm/i;
const name = (task) => `task_models.${task}`;

/** A field for the account's embedding model, from the providers that can embed. */
export function embedding(providers, models) {
  const able = new Map(providers.filter((each) => each.can_embed).map((each) => [each.slug, each]));
  const named = [...able.values()].filter((each) => each.embedding_model).map((each) => `${each.slug}/${each.embedding_model}`);
  const listed = models.map(({ id }) => id).filter((id) => EMBEDS.test(id) && able.has(id.split("/")[0]));
  const list = h("datalist", { id: "embedding-models" }, [...new Set([...named, ...listed])].map((value) => h("option", { value })));
  const make = (field) => {
    const made = control(field);
    made.input.setAttribute("list", list.id);
    made.element.append(list);
    return made;
  };
  return { name: name("embedding"), ...labels(m("tasks.embedding")), placeholder: m("as.server"), most: 200, wide: true, control: make };
}

/**
 * Fields for `autoform`, and `suit(chain, reply)`, which shows the inherited values.
 * `chain` are the settings in order of precedence, `reply` is the id of the reply's model.
 */
export function tasks(models) {
  const made = new Map();
  const make = (field) => {
    const each = picker(field);
    made.set(field.name, { ...each, options: field.options });
    return each;
  };
  const field = (task, path) => {
    const options = [[null, ""], ...models.map(({ id, title }) => [id, title])];
    return { name: path, ...labels(m(`tasks.${task}`)), options, models, wide: true, control: make };
  };
  const fields = [field("all", "enrichment.model"), ...TASKS.map((task) => field(task, name(task)))];
  const known = (id) => models.find((each) => each.id === id);
  const title = (id) => known(id)?.title ?? id;
  const suit = (chain, reply) => {
    const first = (read, from = chain.slice(1)) => from.map(read).find(Boolean);
    const say = (path, how, id) => {
      const { options, read, write } = made.get(path);
      options[0] = [null, m(`as.${how}`, { model: title(id) })];
      write(read());
    };
    const above = first((each) => each.enrichment?.model);
    // Without a choice, the server's task model is used, or the model of the reply.
    const usual = known(reply)?.task_model ?? reply;
    const plain = usual === reply ? "reply" : "server_does";
    if (above) say("enrichment.model", "account", above);
    else say("enrichment.model", plain, usual);
    const all = first((each) => each.enrichment?.model, chain);
    for (const task of TASKS) {
      const named = first((each) => each.task_models?.[task]);
      if (named) say(name(task), "account", named);
      else if (task === "suggestions") say(name(task), "reply", reply);
      else if (all) say(name(task), "all", all);
      else say(name(task), plain, usual);
    }
  };
  return { fields, suit };
}
