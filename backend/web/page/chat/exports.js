/** Menu items that save a chat as a file. */
import { api, t } from "../core.js";

const FORMATS = ["jsonl", "markdown", "text", "archive"];

export const exports = ({ id }) => FORMATS.map((format) => ({
  label: t(`chats.export.${format}`),
  icon: "download",
  act: () => api.download(`/chats/${id}/export?format=${format}`),
}));
