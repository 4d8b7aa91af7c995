/** What the views of providers share: the form that adds one, and what a test of one says. */
import { api } from "../core/api.js";
import { explain } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { sendform } from "../core/form.js";
import { session } from "../core/store.js";
import { number } from "../core/words.js";
import { m } from "./picker.js";

export const PATH = "/providers";
export const KEY = { name: "api_key", type: "password", label: m("key"), most: 4000 };
export const ADDRESS = { name: "base_url", type: "url", label: m("address"), most: 500 };
export const MODELS = { name: "models", kind: "words", label: m("models"), help: m("models_help") };

const keyLink = ({ key_url: href }) =>
  href && h("a", { href, target: "_blank", rel: "noopener noreferrer" }, m("key_link"));

/** Ask a provider's server for its models and a first word, and tell in `box` how it went. */
export async function test({ id }, box) {
  fill(box, h("p.soft", { role: "status" }, m("testing")));
  try {
    const { ok, steps, models: count, model, problem } = await api.post(`${PATH}/${id}/test`, {});
    const line = ({ step, ok: went, milliseconds }) =>
      h("li", {}, icon(went ? "check" : "alert"),
        h("div.grow", {}, m(`steps.${step}.${went ? "ok" : "failed"}`, { count, model: model ?? "" })),
        h("small.soft", {}, m("milliseconds", { count: number(milliseconds) })));
    fill(box,
      h("ul.list", { "aria-label": m("test") }, steps.map(line)),
      h("p", { role: ok ? "status" : "alert", class: ok ? "" : "trouble" }, ok ? m("works") : problem?.detail ?? m("fails")));
    return ok;
  } catch (error) {
    fill(box, h("p.trouble", { role: "alert" }, explain(error)));
    return false;
  }
}

/**
 * A form that adds a provider and tests it; `done()` is called once it answers. One that does not
 * is kept, until the form is sent again and makes another in its place.
 */
export async function adding(done, signal) {
  const presets = await api.all("/provider-presets", { signal });
  const link = h("div");
  const report = h("div.stack");
  const options = presets.map(({ name, title, is_local: local }) => [name, local ? m("local", { title }) : title]);
  let made = null;
  const send = async ({ preset, api_key: key, base_url: url, models, shared }) => {
    fill(report);
    if (made) await api.delete(`${PATH}/${made.id}`);
    made = null;
    made = await api.post(PATH, {
      preset,
      api_key: key || undefined,
      base_url: url || undefined,
      models: models.map((name) => ({ name })),
      scope: shared ? "installation" : undefined,
    });
    if (await test(made, report)) done();
  };
  const fields = [{ name: "preset", kind: "select", label: m("service"), options }, KEY, ADDRESS, MODELS];
  if (session.user.is_administrator) fields.push({ name: "shared", kind: "check", label: m("shared"), help: m("shared_help") });
  const { element, controls } = sendform({ fields, submit: m("add"), send, extra: h("div.stack", {}, link, report) });
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
    fill(report);
  };
  service.input.addEventListener("change", suit);
  suit();
  return element;
}
