/** The selection of several characters in a list, and the actions for them. */
import { act, fill, h, menu, size, t } from "../core.js";
import { listSelection } from "../core/selection.js";
import { exportsOf, favourAll, removeAll } from "./acts.js";
import { say } from "./parts.js";

/** The selection of characters. `options` are those of `listSelection`. */
export function characterSelection(list, options) {
  const arriving = h("small.figure");
  const told = (bytes) => fill(arriving, bytes && size(bytes));
  const tools = [
    act("download", t("common.export"), ({ currentTarget }) =>
      menu(currentTarget, exportsOf(() => self.items.map(({ id }) => id), told))),
    act("star", say("favourite_make"), () => favourAll(self.items)),
    act("delete", t("common.delete"), () => {
      const { items } = self;
      self.turn(false);
      removeAll(items);
    }, "danger"),
  ];
  const self = listSelection(list, {
    label: say("selection"),
    counted: (count) => say("chosen", { count }),
    named: (item) => say("select_one", item),
    tools,
    ...options,
  });
  self.element.firstChild.after(arriving);
  return self;
}
