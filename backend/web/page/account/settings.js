/** General settings: appearance, writing, and the defaults of chats. */
import { appearance, writing } from "./appearance.js";
import { defaults } from "./defaults.js";
import { frame, part } from "./parts.js";
import { quickReplies } from "./quick-replies.js";

/** Route: #/settings */
export default async function ({ signal, title }) {
  return frame("settings", title,
    appearance(signal),
    writing(signal),
    part("defaults", await defaults(signal)),
    part("quick_replies", await quickReplies(signal)));
}
