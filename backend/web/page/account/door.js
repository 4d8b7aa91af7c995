import { h } from "../core/dom.js";
export default async () => h("main.page", {}, h("h1", {}, "Door"));
