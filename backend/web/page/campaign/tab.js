/** The world on the campaign's page. */
import { complain } from "../core.js";
import { sections } from "./sections.js";
import { World } from "./world.js";

export default async function (it, { signal, tell }) {
  const world = new World(it.id, signal);
  await world.read();
  document.addEventListener("visibilitychange", () => document.hidden || world.read().catch(complain), { signal });
  world.addEventListener("change", () => {
    const { day, time_of_day } = world.state;
    tell(Object.assign(it, { day, time_of_day }));
  }, { signal });
  return sections(world, signal);
}
