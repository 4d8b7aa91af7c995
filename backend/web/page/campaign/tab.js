/** The world on the campaign's page. */
import { complain, on } from "../core.js";
import { sections } from "./sections.js";
import { World } from "./world.js";

export default async function (it, { signal, tell }) {
  const world = new World(it.id, signal);
  await world.read();
  on(document, "visibilitychange", () => document.hidden || world.read().catch(complain), signal);
  on(world, "change", () => {
    const { day, time_of_day } = world.state;
    tell(Object.assign(it, { day, time_of_day }));
  }, signal);
  return sections(world, signal);
}
