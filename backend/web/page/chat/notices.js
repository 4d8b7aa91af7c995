/** What went wrong while a reply was written, without ending it: said at the reply. */
import { h } from "../core/dom.js";
import { t } from "../core/words.js";
import { windowLink } from "../models/picker.js";

/** The notices of a message, each with the way to the setting that mends it. */
export const notices = ({ notices: all = [] }) =>
  all.map(({ kind, model, ...numbers }) =>
    h("p.state", { role: "note" }, t(`chat.notices.${kind}`, numbers), " ", windowLink(model)));
