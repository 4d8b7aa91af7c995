/** Shared parts of the provider views: the form that adds one, and the result of a test. */
import {
  api, attempt, explained, fill, h, icon, number, on, sendform, session, t, toast, told,
} from "../core.js";
import { remedies } from "./addresses.js";
import { m, windowOf } from "./picker.js";

export const PATH = "/providers";
/** The preset for unknown servers. */
const OTHER = "other";
export const KEY = { name: "api_key", type: "password", label: m("key"), most: 4000 };
export const ADDRESS = { name: "base_url", type: "url", label: m("address"), placeholder: "http://127.0.0.1:8080/v1", most: 500 };
const NAMED = { name: "name", label: t("common.name"), help: m("name_help"), most: 100 };
export const MODELS = { name: "models", kind: "words", label: m("models"), help: m("models_help") };

const keyLink = ({ key_url: href }) =>
  href && h("a", { href, target: "_blank", rel: "noopener noreferrer" }, m("key_link"));

/** Show in `box` that an address was refused, with the options of `remedies`. */
export function refused(error, box, remedy) {
  fill(box, h("div.trouble", { role: "alert" }, explained(error)), remedies(error.body.address, remedy));
  box.scrollIntoView({ block: "nearest" });
}

/**
 * Test a provider, and show the result in `box`.
 * `ask()` sends the request, `remedy` is passed to `remedies`. Returns the result, or undefined if
 * the address was refused.
 */
export async function test(ask, box, remedy) {
  fill(box, h("p.soft", { role: "status" }, m("testing")));
  box.scrollIntoView({ block: "nearest" });
  try {
    const tested = await ask();
    const { ok, steps, models: count, model, answered, problem } = tested;
    const line = ({ step, ok: went, milliseconds, detail }) =>
      h("li", icon(went ? "check" : "alert"),
        h("div.grow",
          m(`steps.${step}.${went ? "ok" : "failed"}`, { count, model: model ?? "" }),
          !went && ok && h("small.help", detail)),
        h("small.soft", m("milliseconds", { count: number(milliseconds) })));
    fill(box,
      h("ul.list", { label: m("test") }, steps.map(line)),
      answered && h("small.soft", m("answered", { window: windowOf(answered), shape: m(`message_shapes.${answered.shape}`) })),
      h("div", { role: ok ? "status" : "alert", class: ok ? "" : "trouble" }, ok ? m("works") : problem ? told(problem) : m("fails")),
      remedies(problem?.address, remedy));
    return tested;
  } catch (error) {
    fill(box);
    if (!error.body?.address) throw error;
    refused(error, box, remedy);
    return undefined;
  }
}

/**
 * A form that tests a provider and adds it. After a failed test the user can add it anyway.
 * `done()` is called then.
 */
export async function adding(done, signal) {
  const presets = await api.all("/provider-presets", { signal });
  const link = h("div");
  const report = h("div.stack");
  const options = presets.map(({ name, title, is_local: local }) => [name, local ? m("local", { title }) : title]);
  const add = async (provider, { ok, models }) => {
    const made = await api.post(PATH, { ...provider, failed_test: !ok });
    // The listed models become available. The provider works without the list.
    if (models) await api.get(`${PATH}/${made.id}/models`).catch(() => {});
    toast(m(ok ? "added" : "added_untested", { name: made.name }));
    done();
  };
  const send = async ({ preset, api_key: key, base_url: url, name, models, shared }) => {
    const provider = {
      preset,
      api_key: key || undefined,
      base_url: url || undefined,
      name: (preset === OTHER && name) || undefined,
      models: models.map((name) => ({ name })),
      scope: shared ? "installation" : undefined,
    };
    const use = (better) => {
      address.write(better);
      element.requestSubmit();
    };
    const again = () => element.requestSubmit();
    const tested = await test(() => api.post(`${PATH}/test`, provider), report, { url, use, again });
    if (!tested) return;
    if (tested.ok) return add(provider, tested);
    const anyway = () => attempt(() => add(provider, tested));
    report.append(h("div.row", h("button", { onclick: anyway }, m("save_anyway")),
      h("small.soft.grow", m("save_anyway_help"))));
    report.scrollIntoView({ block: "nearest" });
  };
  const fields = [{ name: "preset", kind: "select", label: m("service"), options }, KEY, ADDRESS, NAMED, MODELS];
  if (session.user.is_administrator) fields.push({ name: "shared", kind: "check", label: m("shared"), help: m("shared_help") });
  const { element, controls } = sendform({ fields, submit: m("add"), send, extra: h("div.stack", link, report) });
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
    fill(link, port ? h("p.soft", m("taken_port", { port: String(port), next: String(port + 1) })) : keyLink(preset));
    fill(report);
  };
  on(service.input, "change", suit);
  // After a change, the result of the test no longer applies.
  on(element, "input", () => fill(report));
  suit();
  return element;
}
