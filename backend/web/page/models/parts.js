/** What the views of providers share: the form that adds one, and what a test of one says. */
import { api } from "../core/api.js";
import { explained, told, toast } from "../core/dialogs.js";
import { fill, h, icon } from "../core/dom.js";
import { sendform } from "../core/form.js";
import { session } from "../core/store.js";
import { number, t } from "../core/words.js";
import { m } from "./picker.js";

export const PATH = "/providers";
/** The preset for a server that Talekeeper does not know by name. */
const OTHER = "other";
export const KEY = { name: "api_key", type: "password", label: m("key"), most: 4000 };
export const ADDRESS = { name: "base_url", type: "url", label: m("address"), placeholder: "http://127.0.0.1:8080/v1", most: 500 };
const NAMED = { name: "name", label: t("common.name"), help: m("name_help"), most: 100 };
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
      h("div", { role: ok ? "status" : "alert", class: ok ? "" : "trouble" }, ok ? m("works") : problem ? told(problem) : m("fails")));
    return ok;
  } catch (error) {
    fill(box, h("div.trouble", { role: "alert" }, explained(error)));
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
  const send = async ({ preset, api_key: key, base_url: url, name, models, shared }) => {
    fill(report);
    if (made) await api.delete(`${PATH}/${made.id}`);
    made = null;
    made = await api.post(PATH, {
      preset,
      api_key: key || undefined,
      base_url: url || undefined,
      name: (preset === OTHER && name) || undefined,
      models: models.map((name) => ({ name })),
      scope: shared ? "installation" : undefined,
    });
    if (!(await test(made, report))) return;
    toast(m("added", { name: made.name }));
    done();
  };
  const fields = [{ name: "preset", kind: "select", label: m("service"), options }, KEY, ADDRESS, NAMED, MODELS];
  if (session.user.is_administrator) fields.push({ name: "shared", kind: "check", label: m("shared"), help: m("shared_help") });
  const { element, controls } = sendform({ fields, submit: m("add"), send, extra: h("div.stack", {}, link, report) });
  const [service, key, address, name] = ["preset", "api_key", "base_url", "name"].map((each) => controls.get(each));
  const suit = () => {
    const preset = presets.find(({ name }) => name === service.read());
    const somewhere = preset.is_local || preset.name === OTHER;
    const { taken_port: port } = preset;
    key.element.hidden = preset.key === "none";
    key.input.required = preset.key === "required";
    key.input.placeholder = preset.key === "optional" ? m("key_optional") : "";
    address.element.hidden = !somewhere;
    address.input.required = somewhere;
    address.write(somewhere ? preset.base_url : "");
    name.element.hidden = preset.name !== OTHER;
    fill(link, port ? h("p.soft", {}, m("taken_port", { port: String(port), next: String(port + 1) })) : keyLink(preset));
    fill(report);
  };
  service.input.addEventListener("change", suit);
  suit();
  return element;
}
