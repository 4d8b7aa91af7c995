/** Ask for the second factor after the password, if the server requires one. */
import { attempt, fill, h, Problem } from "../core.js";
import { a, passwordForm, field } from "./forms.js";

const REQUIRED = "second-factor-required";

/** Return the browser's passkey as JSON. Its own error messages help no user. */
export const withPasskey = async (act) => {
  const credential = await act().catch(() => {
    throw new Problem({ title: a("passkey_failed") });
  });
  return credential.toJSON();
};

/**
 * Return the response to `send(proof)`. If a second factor is required, ask for it in the box
 * first.
 */
export async function proven(box, send) {
  try {
    return await send({});
  } catch (problem) {
    if (problem.slug !== REQUIRED) throw problem;
    return new Promise((resolve) => ask(box, problem.body, send, resolve));
  }
}

function ask(box, { kinds, passkey }, send, resolve) {
  const prove = async (proof) => resolve(await send(proof));
  let options = passkey;
  const use = async () => {
    // Each challenge works once.
    options ??= await send({}).catch(({ body }) => body.passkey);
    const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(options);
    options = null;
    await prove({ passkey: await withPasskey(() => navigator.credentials.get({ publicKey })) });
  };
  const code = { ...field("otp", "one-time-code"), help: a("otp_help") };
  fill(box,
    h("h2", { tabindex: -1 }, a("second")),
    passkey && h("button", { onclick: () => attempt(use) }, a("use_passkey")),
    kinds.some((kind) => kind !== "passkey") && passwordForm({ fields: [code], submit: a("go_on"), send: prove }),
    !kinds.length && h("p", a("none_here")));
  (box.querySelector("button, input") ?? box.firstChild).focus();
}
