/** The form that adds a provider of models. */
import { api } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { sendform } from "../core/form.js";
import { session } from "../core/store.js";
import { m } from "./picker.js";

export const PATH = "/providers";
export const KEY = { name: "api_key", type: "password", label: m("key"), most: 4000 };
export const ADDRESS = { name: "base_url", type: "url", label: m("address"), most: 500 };
export const MODELS = { name: "models", kind: "words", label: m("models"), help: m("models_help"), required: true };

const keyLink = ({ key_url: href }) =>
  href && h("a", { href, target: "_blank", rel: "noopener noreferrer" }, m("key_link"));

/** A form that adds a provider; `done()` is called once there is one. */
export async function adding(done, signal) {
  const presets = await api.all("/provider-presets", { signal });
  const link = h("div");
  const options = presets.map(({ name, title, is_local: local }) => [name, local ? m("local", { title }) : title]);
  const shared = session.user.is_administrator &&
    { name: "shared", kind: "check", label: m("shared"), help: m("shared_help") };
  const send = async ({ preset, api_key: key, base_url: url, models, shared: isShared }) => {
    await api.post(PATH, {
      preset,
      api_key: key || undefined,
      base_url: url || undefined,
      models: models.map((name) => ({ name })),
      scope: isShared ? "installation" : "user",
    });
    done();
  };
  const fields = [{ name: "preset", kind: "select", label: m("service"), options }, KEY, ADDRESS, MODELS, shared];
  const { element, controls } = sendform({ fields: fields.filter(Boolean), submit: m("add"), send, extra: link });
  const [service, key, address] = ["preset", "api_key", "base_url"].map((name) => controls.get(name));
  const suit = () => {
    const preset = presets.find(({ name }) => name === service.read());
    const own = preset.is_local || preset.name === "other";
    key.element.hidden = preset.key === "none";
    key.input.required = preset.key === "required";
    address.element.hidden = !own;
    address.input.required = own;
    address.write(own ? preset.base_url : "");
    fill(link, keyLink(preset));
  };
  service.input.addEventListener("change", suit);
  suit();
  return element;
}
