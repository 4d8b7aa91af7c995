/** The settings of a chat with several characters. */
import { boxes, control, h, t } from "../core.js";
import { field } from "./fields.js";

/** A select whose first option is the default. */
const among = (name, texts, ...values) =>
  field("select", name, { options: values.map((each) => [each, t(`settings.${texts}.${each}`)]) });

/** A number for each member: how often it speaks unasked. Empty numbers come from the cards. */
const talkativeness = (members) => (own) => {
  const controls = members.map(({ id, name, talkativeness: usual }) => [
    id,
    control({ kind: "number", name: `talkativeness.${id}`, label: name, min: 0, max: 1, step: 0.05, placeholder: usual }),
  ]);
  return {
    element: h("fieldset.field.wide",
      h("legend.label", own.label),
      h("div.fields", controls.map(([, { element }]) => element)),
      h("small.help", own.help)),
    fault() {},
    read: () => Object.fromEntries(controls.flatMap(([id, each]) => {
      const { validity } = each.input;
      each.fault(each.input.validationMessage);
      const value = each.read();
      return validity.valid && value != null ? [[id, value]] : [];
    })),
    write: (values) => controls.forEach(([id, each]) => each.write(values?.[id])),
  };
};

/** The fields of a group. Unset ones have the first option, or nothing. */
export const groupFields = (members) => [
  among("group.next_speaker", "ways", "mention", "list", "pooled", "model", "by_hand"),
  among("group.cards", "card_modes", "joined", "swapped"),
  field("number", "group.auto_replies", { min: 0, max: 50, step: 1, placeholder: 0 }),
  field("check", "group.allow_self_replies", { wide: true }),
  field("boxes", "group.narrators", {
    control: (own) => boxes({ ...own, options: members.map(({ id, name }) => [id, name]) }),
  }),
  field("members", "group.talkativeness", { control: talkativeness(members) }),
];
