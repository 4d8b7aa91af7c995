/** The first step: choose a model. */
import { act, api, h, icon, kept } from "../core.js";
import { offers } from "./local.js";
import { adding } from "./parts.js";
import { m } from "./picker.js";

/** True if only the demo model is available and the user has not accepted it. */
export const lacksModel = async (signal) =>
  !kept.get("demo") && (await api.all("/models", { signal })).every(({ provider }) => provider === "demo");

/** Ask for a model, or the demo. `done()` is called once there is one. */
export async function first(done, signal) {
  const demo = () => {
    kept.set("demo", true);
    done();
  };
  return h("div.card.offer.stack",
    icon("key"),
    h("h2", m("first")),
    h("p.soft", m("first_help")),
    offers(done, signal),
    await adding(done, signal),
    h("hr"),
    h("div.row", act("spark", m("demo"), demo)),
    h("small.soft", m("demo_help")));
}
