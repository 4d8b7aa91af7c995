/** Creates API keys. */
import { api, h } from "../core.js";
import { a, field, secret } from "./forms.js";
import { ask } from "./parts.js";

const SCOPES = ["chat", "read", "manage"];

/** Ask for the label and the permission of a new API key, and show the key once. */
export const makeKey = () => {
  const scope = { ...field("scope"), kind: "select", value: "chat", options: SCOPES.map((each) => [each, a(each)]) };
  return ask("make_key", [field("label"), scope], async (values) =>
    [h("p", a("once")), secret((await api.post("/api-keys", values)).token)]);
};
