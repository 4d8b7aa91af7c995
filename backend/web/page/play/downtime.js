/** Downtime, for rule systems that have it. */
import { api, attempt, complain, h, has, t, toast } from "../core.js";
import { asking } from "../memory/parts.js";

const p = (path, values) => t(`play.${path}`, values);
const named = (word) => (has(`play.words.${word}`) ? p(`words.${word}`) : word);

/** The rule systems, loaded once. */
let rules;
const known = (signal) => (rules ??= api.get("/campaigns/rules", { signal }).catch((error) => {
  rules = null;
  throw error;
}));

/**
 * The button that begins or ends downtime. Hidden without rules for it, and while something is in
 * progress.
 */
export async function pause(campaign, play, changed, signal) {
  const { items } = await known(signal);
  const { moods } = items.find(({ name }) => name === campaign.rules) ?? {};
  if (!moods?.downtime) return false;
  const path = `/campaigns/${campaign.id}/downtime`;
  const end = () => attempt(async () => {
    await api.delete(path);
    changed();
  });
  if (play.mood === "downtime") return h("button.quiet", { onclick: end }, p("resume"));
  const [first] = Object.keys(moods);
  if (play.mood && play.mood !== first) return false;
  const begin = async () => {
    const who = (await api.get(`/campaigns/${campaign.id}/entities`, { query: { kind: "pc" } })).items;
    const clocks = (await api.get(`/campaigns/${campaign.id}/clocks`)).items.filter((each) => each.filled < each.segments);
    const targets = [...who, ...clocks].map(({ name }) => [name, name]);
    const fields = [
      { name: "activity", label: p("activity"), kind: "select", options: moods.downtime.map((each) => [each, named(each)]) },
      { name: "target", label: p("target"), help: p("target_help"), kind: "select", options: [["", p("nobody")], ...targets] },
    ];
    const done = await asking(`downtime.${campaign.id}`, p("words.downtime"), fields, {}, ({ activity, target }) =>
      api.post(path, target ? { activity, target } : { activity }));
    if (!done) return;
    toast(p("rested"));
    changed();
  };
  return h("button.quiet", { onclick: () => begin().catch(complain) }, p("rest"));
}
