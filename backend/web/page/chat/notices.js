/** Notices about problems of a reply, shown at the reply. */
import { h, t } from "../core.js";
import { windowLink } from "../models/picker.js";

/** The notices of a message, each with a link to the setting that fixes it. */
export const notices = ({ notices: all = [] }) =>
  all.map(({ kind, model, reason, ...numbers }) =>
    h("p.state", { role: "note" }, t(`chat.notices.${reason ? `${kind}.${reason}` : kind}`, numbers), " ", model && windowLink(model)));

/** True if a reply is incomplete: it was stopped, it failed, or the model cut it off. */
export const isCut = ({ role, status, notices: all = [] }) =>
  role === "assistant" && (/failed|interrupted/.test(status) || all.some(({ kind }) => kind === "reply_cut"));
