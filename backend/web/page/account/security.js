/** The keys, sessions and sign-in methods of the account. */
import { api, attempt, h, session, t, toast } from "../core.js";
import { factors } from "./factors.js";
import { a, field, NEW, OLD, recovery } from "./forms.js";
import { makeKey } from "./keys.js";
import { listing } from "./listing.js";
import { ask, button, choice, frame, part, used } from "./parts.js";
import { recent } from "./recent.js";

const DEVICE = [/Android|iP\w+|Windows|Mac|Linux(?!; Android)/, /Firefox|Chrome|Safari/];
const device = (label) => DEVICE.map((each) => each.exec(label)).join(" ").trim() || label;

const lend = async (mode) => {
  session.user = (await attempt(() => api.patch("/me", { key_mode: mode }))) ?? session.user;
  if (session.user.key_mode === mode) toast(t("form.saved"));
  return session.user.key_mode;
};

const change = () =>
  ask("change", [field("current_password", OLD), field("new_password", NEW)], async (values, close) => {
    await api.post("/me/password", values);
    toast(a("changed"));
    close();
  });
const renew = () =>
  ask("renew", [field("password", OLD)], async (values, close) =>
    recovery(await api.post("/me/recovery-code", values), session.user.username, close));
const rotate = () =>
  ask("rotate", [field("password", OLD)], async (values, close) => {
    await api.post("/me/rotate-key", values);
    toast(a("rotated"));
    close();
  });

/** Route: #/security */
export default function ({ title }) {
  return frame("security", title,
    choice("mode", ["per_job", "managed", "sealed"], session.user.key_mode, lend),
    part("sign_in_with", h("div.row", button("change", change), button("renew", renew), button("rotate", rotate))),
    factors(),
    listing("sessions", "/sessions", (it) => [device(it.label), used(it), it.is_current ? a("here") : null]),
    listing("keys", "/api-keys", (it) => [it.label, `${a(it.scope)}, ${used(it)}`], "make_key", makeKey),
    recent());
}
