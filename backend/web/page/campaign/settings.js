/** How a campaign is set up: its brief, and how it is remembered. */
import { api } from "../core/api.js";
import { autoform } from "../core/form.js";
import { campaigns } from "../core/store.js";
import { flat, GROUPS, nested } from "./parts.js";

/** A form that saves what is typed; `tell()` hears that the campaign is called otherwise. */
export default function (it, { signal, tell }) {
  return autoform({
    groups: GROUPS,
    value: flat(it, GROUPS),
    signal,
    async save(changes) {
      // A patch names what was changed and nothing else: what a turn changed meanwhile stays.
      Object.assign(it, await api.patch(`/campaigns/${it.id}`, nested(changes), { keepalive: true }));
      campaigns.changed();
      if (!signal.aborted) tell();
    },
  }).element;
}
