/** The account's quick replies, which are offered in all chats. */
import { api, autoform } from "../core.js";
import { replyEditor } from "../chat/reply-editor.js";

const PATH = "/me/settings";

/** A form that saves changes automatically. */
export async function quickReplies(signal) {
  const { quick_replies: value = [] } = await api.get(PATH, { signal });
  const fields = [{ name: "quick_replies", control: replyEditor }];
  const save = (changes) => api.patch(PATH, changes, { keepalive: true });
  return autoform({ groups: [{ fields }], value: { quick_replies: value }, save, signal }).element;
}
