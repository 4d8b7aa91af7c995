/** Menu items that save chats as files. */
import { download, t } from "../core.js";

const FORMATS = ["jsonl", "markdown", "text", "archive"];

export const exports = (...items) => FORMATS.map((format) => ({
  label: t(`chats.export.${format}`),
  icon: "download",
  act: () => download(...items.map(({ id }) => `/chats/${id}/export?format=${format}`)),
}));
