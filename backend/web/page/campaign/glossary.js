/** The glossary: terms of every prompt, and proposed terms. */
import { act, complain, fill, h, on } from "../core.js";
import { c } from "./parts.js";
import { section } from "./sections.js";
import { World } from "./world.js";

/** The answers to a proposed term, with their icons. */
const ANSWERS = { approved: "check", raw: "minus", rejected: "close" };
const GROUPS = [["proposed", true], ["approved", true], ["raw", true], ["rejected", false]];

/** Buttons that answer the proposal of a term. */
const answers = (item, world) =>
  h("p.row.answers", Object.entries(ANSWERS).map(([status, sign]) =>
    act(sign, c(`answers.${status}`), () => world.press("term", item, { status }))));

export default async function (it, { signal }) {
  const world = new World(it.id, signal);
  await world.read();
  const none = h("p.empty");
  const draw = () => {
    none.hidden = world.of("term").length > 0;
    fill(none, c("no_terms"));
  };
  on(world, "change", draw, signal);
  draw();
  on(document, "visibilitychange", () => document.hidden || world.read().catch(complain), signal);
  return h("section.world.glossary",
    h("p.soft", c("glossary_help")),
    none,
    GROUPS.map(([status, open]) => section({
      name: status,
      kind: "term",
      open,
      in: (item) => item.status === status,
      rank: ({ uses }) => -uses,
      extra: status === "proposed" && answers,
      make: status === "approved" && "term definition",
      fresh: () => ({ status }),
    }, world, signal)));
}
