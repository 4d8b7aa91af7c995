/** The way from SillyTavern: which folder, how to zip it, and what comes in. */
import { act, dialog, h } from "../core.js";
import { files, i } from "./files.js";

/** The steps, with a button that lets the user choose the zip. `then()` is called before it. */
export function steps(then) {
  const choose = () => {
    then?.();
    files.choose();
  };
  return h("div.stack",
    h("ol.steps", i("moving.steps").split("\n").map((step) => h("li", step))),
    h("p", i("moving.what")),
    h("p", i("moving.keys")),
    h("p.help", i("moving.again")),
    h("div", act("upload", i("moving.choose"), choose, "primary")));
}

/** The button that explains the steps in a dialog. */
export const movingButton = () =>
  act("upload", i("moving.title"), () => dialog(i("moving.title"), (close) => steps(close)));
