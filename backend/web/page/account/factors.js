/** Second factors: authenticator app, passkeys, one-time codes. */
import { api, attempt, fill, h, t } from "../core.js";
import { a, passwordForm, field, keepsake, OLD, secret } from "./forms.js";
import { ask, button, part, qr, used } from "./parts.js";
import { proven, withPasskey } from "./proof.js";

const PATH = "/me/second-factors";
/** Show one-time codes, if there are any. */
function codes(made, close) {
  if (!made) return close();
  const print = button("print", () => window.print());
  return keepsake([h("p", a("codes_help")), secret(made.join("\n"), "Talekeeper codes.txt", a("codes")), print], close);
}

const PASSWORD = field("password", OLD);
const label = (value) => ({ ...field("label"), label: t("common.name"), most: 100, value });

const app = () =>
  ask("set_up", [PASSWORD], async (values, close, box) => {
    const made = await proven(box, (proof) => api.post(`${PATH}/totp`, { ...values, ...proof }));
    const send = async (code) => {
      const on = await api.post(`${PATH}/totp/confirmation`, code);
      fill(box, codes(on.codes, close));
    };
    return [
      h("p", a("scan")),
      qr(made.qr, a("qr")),
      h("a", { href: made.uri }, a("open_app")),
      secret(made.secret),
      passwordForm({ fields: [field("code", "one-time-code")], submit: a("switch_on"), send }),
    ];
  });

const passkey = () =>
  ask("add_passkey", [PASSWORD, label()], async ({ label: name, ...values }, close, box) => {
    const path = `${PATH}/passkeys`;
    const { options } = await proven(box, (proof) => api.post(path, { ...values, ...proof }));
    const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(options);
    const credential = await withPasskey(() => navigator.credentials.create({ publicKey }));
    const made = await api.post(`${path}/confirmation`, { label: name, credential });
    return codes(made.codes, close);
  });

const renew = () =>
  ask("new_codes", [PASSWORD], async (values, close, box) => {
    const made = await proven(box, (proof) => api.post(`${PATH}/codes`, { ...values, ...proof }));
    return codes(made.codes, close);
  });

const rename = (key) =>
  ask("rename", [label(key.label)], async (values, close) => {
    await api.patch(`${PATH}/passkeys/${key.id}`, values);
    close();
  });

const remove = (path) =>
  ask("take_away", [PASSWORD], async (values, close, box) => {
    await proven(box, (proof) => api.delete(PATH + path, { ...values, ...proof }));
    close();
  });

export function factors() {
  const box = h("div.stack");
  const read = async () => fill(box, view(await api.get(PATH)));
  const does = (name, what, about) =>
    button(name, async () => (await what(), read()), about && { label: `${a(name)}: ${about}` });
  const line = (name, about, ...buttons) =>
    h("li", h("div.grow", h("div.clip", name), h("small.help", about)), buttons);
  const view = ({ totp, passkeys, one_time_codes: count }) => [
    h("ul.list",
      totp && line(a("app"), used(totp), does("take_away", () => remove("/totp"), a("app"))),
      passkeys.map((key) => line(key.label, `${key.site}, ${used(key)}`,
        does("rename", () => rename(key), key.label),
        does("take_away", () => remove(`/passkeys/${key.id}`), key.label))),
      (totp || passkeys.length > 0) && line(a("codes"), a("codes_left", { count }), does("new_codes", renew))),
    h("div.row", does("set_up", app), does("add_passkey", passkey)),
  ];
  attempt(read);
  return part("factors", box);
}
