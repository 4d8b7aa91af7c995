/** The field of an audience: everyone, the game master, or the selected people. */
import { h, on } from "./dom.js";
import { boxes, control } from "./form.js";
import { t } from "./words.js";

const c = (name) => t(`campaign.${name}`);

/** @param {Array} people `[id, name]` of those who can be selected. */
export const audience = (people) => ({
  name: "audience",
  kind: "select",
  label: c("fields.audience"),
  control(own) {
    const options = ["public", "gm", "some"].map((each) => [each, c(`values.${each}`)]);
    const choice = control({ ...own, options });
    const who = boxes({ label: c("who"), options: people });
    const suit = () => (who.element.hidden = choice.read() !== "some");
    on(choice.input, "change", suit);
    return {
      ...choice,
      element: h("div.stack.wide", choice.element, who.element),
      read: () => (choice.read() === "some" ? who.read() : choice.read()),
      write(value) {
        choice.write(Array.isArray(value) ? "some" : value);
        who.write(Array.isArray(value) ? value : []);
        suit();
      },
    };
  },
});
