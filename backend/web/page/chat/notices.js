/** What went wrong while a reply was written: said at the reply. */
import { h } from "../core/dom.js";
import { t } from "../core/words.js";
import { windowLink } from "../models/picker.js";

/** The notices of a message, each with the way to the setting that mends it. */
export const notices = ({ notices: all = [] }) =>
  all.map(({ kind, model, reason, ...numbers }) =>
    h("p.state", { role: "note" }, t(`chat.notices.${reason ? `${kind}.${reason}` : kind}`, numbers), " ", model && windowLink(model)));

/** Whether a reply ended before its end: it was stopped, it failed, or the model broke off. */
export const isCut = ({ role, status, notices: all = [] }) =>
  role === "assistant" && (/failed|interrupted/.test(status) || all.some(({ kind }) => kind === "reply_cut"));
