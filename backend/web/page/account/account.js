/** The account: its name, usage, and deletion. */
import { api, attempt, commit, h, kept, session, t, undoable } from "../core.js";
import { archiveBox } from "../transfer/archive.js";
import { a, field, OLD } from "./forms.js";
import { month } from "./month.js";
import { ask, button, part } from "./parts.js";
import { usage } from "./usage.js";

const forget = () => kept.names().forEach((name) => kept.set(name, null));
const leave = () => location.replace(location.pathname);

async function signOut(button) {
  // Deletions that can still be undone need the session.
  await commit();
  const act = async (options) => {
    const ending = api.delete("/sessions/current", undefined, options);
    const values = kept.names().map((name) => [name, kept.get(name)]);
    // The page may be closing, so this does not wait for the response.
    forget();
    await ending.catch((error) => {
      for (const each of values) kept.set(...each);
      throw error;
    });
    leave();
  };
  const drafts = kept.names().some((name) => /^(draft|edit|event|chronicle)\b/.test(name));
  if (!drafts) return act();
  const disable = (is) => () => (button.disabled = is);
  undoable(a("drafts"), { hide: disable(true), act, show: disable(false), now: t("common.now") });
}

const remove = async () => {
  const leaving = new AbortController();
  const offer = h("div.card.stack", h("p", t("archive.first")));
  attempt(async () => offer.append(await archiveBox(leaving.signal)));
  const send = async (values) => {
    await api.delete("/me", values);
    forget();
    leave();
  };
  await ask("remove", [field("password", OLD)], send, offer);
  leaving.abort();
};

/** Route: #/account */
export default function ({ signal, title }) {
  title(t("shell.account"));
  const { user } = session;
  const out = button("sign_out", () => signOut(out));
  return h("div.page.narrow",
    h("header",
      h("div.grow", h("h1.clip", user.username), user.is_administrator && a("is_administrator")),
      out),
    h("p.row.lead", h("a", { href: "#/security" }, a("to_security")), h("a", { href: "#/settings" }, t("settings.title"))),
    month(signal),
    usage(),
    part("remove", h("div", button("remove", remove, { class: "danger" }))));
}
