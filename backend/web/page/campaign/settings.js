/** The settings of a campaign: its brief and its memory. */
import { api, autoform, campaigns } from "../core.js";
import { flat, GROUPS, nested } from "./parts.js";

/** A form that saves automatically. `tell()` is called after a change of the name. */
export default function (it, { signal, tell }) {
  return autoform({
    groups: GROUPS,
    value: flat(it, GROUPS),
    signal,
    async save(changes) {
      // A patch contains only the changes, so that changes of a turn are kept.
      Object.assign(it, await api.patch(`/campaigns/${it.id}`, nested(changes), { keepalive: true }));
      campaigns.changed();
      if (!signal.aborted) tell();
    },
  }).element;
}
