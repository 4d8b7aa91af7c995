/** The editor of a list of quick replies, with the interface of `control`. */
import { act, control, h, set, t, undoable } from "../core.js";

const MOST = 200; // of one owner
const FIELDS = [
  { name: "label", most: 200 },
  { name: "set", most: 100 },
  { name: "text", kind: "area", most: 4000 },
];

const r = (name) => t(`replies.${name}`);

export function replyEditor() {
  const list = h("ol.stack");
  const lines = new Map();
  const shown = () => [...list.children].filter(({ hidden }) => !hidden);
  const changed = () => {
    another.hidden = list.children.length >= MOST;
    list.dispatchEvent(new Event("change", { bubbles: true }));
  };
  const add = (value) => {
    const fields = FIELDS.map((each) => control({ ...each, label: r(each.name), wide: each.name === "text" }));
    fields.forEach((each, index) => each.write(value[FIELDS[index].name]));
    const hide = (is) => () => {
      line.hidden = is;
      changed();
    };
    const cut = () => {
      undoable(r("deleted"), { hide: hide(true), act() {}, show: hide(false) });
      another.focus();
    };
    const raise = () => {
      const all = shown();
      all[all.indexOf(line) - 1]?.before(line);
      up.focus();
      changed();
    };
    const up = set(act("down", r("up"), raise, "quiet"), { class: "up" });
    const line = h("li.card", h("div.fields", fields.map(({ element }) => element)),
      h("div.row", up, act("delete", r("delete"), cut, "quiet")));
    lines.set(line, fields);
    list.append(line);
    return fields[0].input;
  };
  const another = act("plus", r("add"), () => {
    add({}).focus();
    changed();
  });
  return {
    element: h("fieldset.field.wide.replies", h("legend.unseen", r("title")), h("small.help", r("help")), list, another),
    read: () =>
      shown()
        .map((line) => Object.fromEntries(lines.get(line).map((each, index) => [FIELDS[index].name, each.read()])))
        .filter(({ text }) => text.trim()),
    write(values) {
      list.replaceChildren();
      lines.clear();
      for (const value of Array.isArray(values) ? values : []) add(value);
    },
    fault() {},
  };
}
