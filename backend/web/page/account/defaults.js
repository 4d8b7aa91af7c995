/** The settings of the account, which apply in all chats that do not override them. */
import { api, autoform, personas, texts } from "../core.js";
import { at, field, patchOf, word } from "../chat/fields.js";
import { picker } from "../models/picker.js";
import { dropped, removed, samplers } from "../models/sampling.js";
import { tasks } from "../models/tasks.js";
import { a } from "./forms.js";

const PATH = "/me/settings";
const BUDGETS = ["total", "history", "retrieval", "reply_reserve"];
const MODES = ["keys_and_meaning", "keys", "meaning"];

/** A form that saves changes automatically. */
export async function defaults(signal) {
  let [settings, models, people, presets] = await Promise.all([
    api.get(PATH, { signal }), api.all("/models", { signal }), personas.all(),
    api.all("/presets", { signal }),
  ]);
  const pick = (name, none, items, more) => {
    const options = [[null, a(none)], ...items.map((each) => [each.id, each.title ?? each.name])];
    return { name, label: a(name.split(".").at(-1)), kind: "select", options, ...more };
  };
  const figure = (name) =>
    ({ name: `budgets.${name}`, label: a(name), kind: "number", min: 1, step: 1, placeholder: a("default") });
  const sampling = samplers();
  const work = tasks(models);
  const modelOf = (id) => models.find((each) => (id ? each.id === id : each.is_default));
  const suit = () => {
    const model = modelOf(settings.model);
    sampling.suit(model);
    work.suit([settings], model?.id);
  };
  const groups = [
    {
      fields: [
        pick("model", "default", models, { models, control: picker }),
        pick("persona_id", "nobody", people),
        pick("preset_id", "default_order", presets),
        pick("lore.mode", "default", MODES.map((id) => ({ id, name: texts.lore.options.mode[id] })), { label: a("lore_mode") }),
        { name: "system_prompt", label: a("system_prompt"), kind: "area", count: true },
      ],
    },
    { title: word("tasks"), fields: work.fields },
    ...sampling.groups,
    {
      title: a("budgets"),
      fields: [
        ...BUDGETS.map(figure),
        { name: "reasoning_sent", label: word("reasoning_sent"), kind: "number", min: 0, max: 50, step: 1, placeholder: 0 },
        field("check", "keep_other_speakers"),
        field("select", "expand_macros", { options: [[null, word(true)], [false, word(false)]] }),
      ],
    },
  ];
  const fields = groups.flatMap((group) => group.fields);
  const value = Object.fromEntries(fields.map(({ name }) => [name, at(settings, name) ?? null]));
  // Only changes are sent, so that changes from other windows are kept.
  const write = async (patch) => {
    const before = settings;
    const gone = "model" in patch ? dropped(modelOf(patch.model), before.sampling) : {};
    settings = await api.patch(PATH, { ...patch, sampling: { ...patch.sampling, ...gone } }, { keepalive: true });
    // Without a choice, another model may become the default.
    if ("model" in patch) models = await api.all("/models", { signal });
    form.put(sampling.named(gone));
    suit();
    removed(modelOf(patch.model), gone, before, restore);
  };
  const restore = async (patch) => {
    await write(patch);
    form.put({ model: patch.model, ...sampling.named(patch.sampling) });
    suit();
  };
  const save = (changes) => write(patchOf(changes, settings));
  const form = autoform({ groups, signal, value, save });
  suit();
  return form.element;
}
