/** Small elements that many views use. */
import { h, fill } from "./dom.js";
import { ago, dateTime } from "./words.js";

/** A moment: how long ago it was, with the date as a title. */
export const timed = (when, look = "") =>
  h("time", { class: look, datetime: when, title: dateTime(when) }, ago(when));

/** The mark of a tag among the texts that a `finder` searches. */
export const tagKey = (tag) => `\n#${tag.toLowerCase()}\n`;

const MOST_TAGS = 18;

/**
 * Buttons for the tags that are used most often. A pressed one is in the set `wanted`, which the
 * finder `find` requires.
 *
 * @returns {{element, show}} `show(items)` shows the tags of other items.
 */
export function tagFilter(label, wanted, find) {
  const element = h("div.row.tags", { role: "group", label });
  const button = ([key, { name, count }]) => {
    const onclick = ({ currentTarget: button }) => {
      if (!wanted.delete(key)) wanted.add(key);
      button.ariaPressed = wanted.has(key);
      find.run();
    };
    return h("button.tag", { pressed: wanted.has(key), onclick }, name, h("small", count));
  };
  return {
    element,
    show(items) {
      const known = new Map();
      for (const item of items) {
        for (const [key, name] of new Map(item.tags.map((each) => [tagKey(each), each]))) {
          const { count = 0, ...first } = known.get(key) ?? { name };
          known.set(key, { ...first, count: count + 1 });
        }
      }
      // Other marks, such as that of favourites, are not tags.
      for (const key of wanted) if (key.startsWith("\n#") && !known.has(key)) wanted.delete(key);
      const often = [...known].sort(([, one], [, other]) => other.count - one.count);
      fill(element, often.filter(([key], at) => at < MOST_TAGS || wanted.has(key)).map(button));
      element.hidden = !often.length;
    },
  };
}
