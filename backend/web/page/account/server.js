/** The server, for administrators: users, invitations, phones, and models on this machine. */
import { api, attempt, date, dialog, h, Problem, session, t } from "../core.js";
import { local } from "../models/local.js";
import { a, secret } from "./forms.js";
import { listing } from "./listing.js";
import { button, frame } from "./parts.js";
import { phones } from "./phones.js";
import { bars } from "./usage.js";

const day = (name, at) => a(name, { date: date(at) });

const invite = async () => {
  const { code } = await api.post("/admin/invitations", {});
  const said = h("p", a("invited"), " ", a("once"));
  await dialog(a("invitation"), () => h("div.stack", said, secret(code)));
};

/** Show the usage of an account to an administrator. */
const usageOf = (id, username) => {
  const named = a("usage_named", { name: username });
  return button("usage", () => dialog(named, () => bars(`/admin/users/${id}/usage`)), { label: named });
};

/** The actions of an administrator on another account. */
const powers = ({ id, username, ...now }) =>
  h("div.row.powers", id !== session.user.id && ["is_administrator", "is_disabled"].map((name) => {
    const onchange = async ({ target: box }) => {
      const done = await attempt(() => api.patch(`/admin/users/${id}`, { [name]: box.checked }));
      if (!done) box.checked = !box.checked;
    };
    const label = `${username}: ${a(name)}`;
    const box = h("input", { type: "checkbox", checked: now[name], onchange, label });
    return h("label.row", box, a(name));
  }), usageOf(id, username));

/** Route: #/server */
export default async function ({ signal, title }) {
  if (!session.user.is_administrator) throw new Problem({ title: t("errors.nowhere") });
  return frame("server", title,
    listing("people", "/admin/users", (it) => [it.username, day("since", it.created_at), powers(it)]),
    listing("invitations", "/admin/invitations", (it) => [day("until", it.expires_at)], "invite", invite),
    await phones(signal),
    await local(signal));
}
