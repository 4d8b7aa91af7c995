import { h } from "../core/dom.js";
export default async () => h("div.page", {}, h("h1", {}, "Chats"));
