/** The account: its name, usage, and deletion. */
import { api, attempt, h, kept, session, sure, t } from "../core.js";
import { archiveBox } from "../transfer/archive.js";
import { a, field, OLD } from "./forms.js";
import { month } from "./month.js";
import { ask, button, part } from "./parts.js";
import { usage } from "./usage.js";

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

/** Route: #/account */
export default function ({ signal, title }) {
  title(t("shell.account"));
  const { user } = session;
  return h("div.page.narrow", {},
    h("header", {},
      h("div.grow", {}, h("h1.clip", {}, user.username), user.is_administrator && a("is_administrator")),
      button("sign_out", signOut)),
    h("p.row.lead", {}, h("a", { href: "#/security" }, a("to_security")), h("a", { href: "#/settings" }, t("settings.title"))),
    month(signal),
    usage(),
    part("remove", h("div", {}, button("remove", remove, { class: "danger" }))));
}
