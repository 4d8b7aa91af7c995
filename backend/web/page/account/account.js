/** The account: its keys, sessions, sign-in methods, and usage. */
import { api } from "../core/api.js";
import { attempt, dialog, sure, toast } from "../core/dialogs.js";
import { fill, h } from "../core/dom.js";
import { kept, session } from "../core/store.js";
import { date, t } from "../core/words.js";
import { archiveBox } from "../transfer/archive.js";
import { a, field, NEW, OLD, recovery, secret } from "./forms.js";
import { factors } from "./factors.js";
import { makeKey } from "./keys.js";
import { areas, ask, button, choice, part, used } from "./parts.js";
import { recent } from "./recent.js";
import { bars, usage } from "./usage.js";

const DEVICE = [/Android|iP\w+|Windows|Mac|Linux(?!; Android)/, /Firefox|Chrome|Safari/];
const device = (label) => DEVICE.map((each) => each.exec(label)).join(" ").trim() || label;
const day = (name, at) => a(name, { date: date(at) });

/**
 * A list of the items at a path. `row` returns the name, the description, and the label of "End".
 */
function listing(name, path, row, make, act) {
  const list = h("ul.list");
  const read = async () => fill(list, (await api.all(path)).filter((item) => !item.used_at).map(line));
  const line = (item) => {
    const [label, about, other] = row(item);
    const named = a("end_named", { name: label });
    const end = async () => {
      if (!(await sure(named, a("end_help"), a("end")))) return;
      await api.delete(`${path}/${item.id}`);
      await read();
    };
    return h("li", {},
      h("div.grow", {}, h("div.clip", {}, label), h("small.help", {}, about)),
      other ?? button("end", end, { "aria-label": named }));
  };
  attempt(read);
  return part(name, list, make && h("div", {}, button(make, async () => (await act(), read()))));
}

function leave() {
  for (const name of kept.names()) kept.set(name, null);
  location.replace(location.pathname);
}

async function signOut() {
  const drafts = kept.names().some((name) => /^(draft|edit|event|chronicle)\b/.test(name));
  if (drafts && !(await sure(a("drafts"), a("drafts_help"), a("sign_out")))) return;
  await api.delete("/sessions/current");
  leave();
}

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
const remove = async () => {
  const leaving = new AbortController();
  const offer = h("div.card.stack", {}, h("p", {}, t("archive.first")));
  attempt(async () => offer.append(await archiveBox(leaving.signal)));
  const send = async (values) => {
    await api.delete("/me", values);
    leave();
  };
  await ask("remove", [field("password", OLD)], send, offer);
  leaving.abort();
};
const invite = async () => {
  const { code } = await api.post("/admin/invitations", {});
  const said = h("p", {}, a("invited"), " ", a("once"));
  await dialog(a("invitation"), () => h("div.stack", {}, said, secret(code)));
};

/** Show the usage of an account to an administrator. */
const usageOf = (id, username) => {
  const named = a("usage_named", { name: username });
  return button("usage", () => dialog(named, () => bars(`/admin/users/${id}/usage`)), { "aria-label": named });
};

/** The actions of an administrator on another account. */
const powers = ({ id, username, ...now }) =>
  h("div.stack", {}, usageOf(id, username), id !== session.user.id && ["is_administrator", "is_disabled"].map((name) => {
    const onchange = async ({ target: box }) => {
      const done = await attempt(() => api.patch(`/admin/users/${id}`, { [name]: box.checked }));
      if (!done) box.checked = !box.checked;
    };
    const label = `${username}: ${a(name)}`;
    const box = h("input", { type: "checkbox", checked: now[name], onchange, "aria-label": label });
    return h("label.row", {}, box, a(name));
  }));

export default function ({ title }) {
  title(t("shell.account"));
  const { user } = session;
  return h("div.page.narrow", {},
    h("header", {},
      h("div.grow", {}, h("h1.clip", {}, user.username), user.is_administrator && a("is_administrator")),
      button("sign_out", signOut)),
    areas("account"),
    choice("mode", ["per_job", "managed", "sealed"], user.key_mode, lend),
    part("security", h("div.row", {}, button("change", change), button("renew", renew), button("rotate", rotate))),
    factors(),
    listing("sessions", "/sessions", (it) => [device(it.label), used(it), it.is_current ? a("here") : null]),
    listing("keys", "/api-keys", (it) => [it.label, `${a(it.scope)}, ${used(it)}`], "make_key", makeKey),
    recent(),
    usage(),
    user.is_administrator && [
      listing("invitations", "/admin/invitations", (it) => [day("until", it.expires_at)], "invite", invite),
      listing("people", "/admin/users", (it) => [it.username, day("since", it.created_at), powers(it)]),
    ],
    part("remove", h("div", {}, button("remove", remove, { class: "danger" }))));
}
