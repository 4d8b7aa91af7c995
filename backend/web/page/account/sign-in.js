/** Sign up, sign in, and recovery of an account. */
import { api, asset, fill, h, session } from "../core.js";
import { a, field, NEW, OLD, passwordForm, recovery } from "./forms.js";
import { proven } from "./proof.js";

/** The sign-in page. `entered()` is called after signing in; `said` is the reason for signing in again. */
export default function ({ title, entered, said }) {
  const { sign_up: may } = session.instance;
  const name = field("username", "username");
  const WAYS = {
    sign_in: ["/sessions", name, field("password", OLD)],
    sign_up: ["/accounts", ...(may === "invitation" ? [field("invitation")] : []), name, field("password", NEW)],
    recover: ["/recoveries", name, field("recovery_code"), field("new_password", NEW)],
  };
  const ways = { first: ["sign_up"], closed: ["sign_in", "recover"] }[may] ?? Object.keys(WAYS);
  const card = h("section.card");
  const show = (way) => {
    const [path, ...fields] = WAYS[way];
    const help = may === "first" ? a("hello") : way === "recover" ? a("recover_help") : said;
    const send = async (values) => {
      const made = await proven(card, (proof) => api.post(path, { ...values, ...proof }));
      if (!made.recovery_code) return entered();
      fill(card, h("h2", { tabindex: -1 }, a("keep")), recovery(made, made.user.username, entered));
      card.firstChild.focus();
    };
    title(a(way));
    fill(card,
      h("h2", a(way)),
      help && h("p.help", help),
      !isSecureContext && h("p.trouble", a("in_the_clear")),
      passwordForm({ fields, send, submit: a(way === "recover" ? "go_on" : way) }),
      h("div.row", ways.map((each) => each !== way && h("button.quiet", { onclick: () => show(each) }, a(each)))));
    setTimeout(() => card.querySelector("input").focus());
  };
  show(ways[0]);
  const brand = [h("img", { src: asset("icon.svg"), alt: "" }), h("h1", "Talekeeper"), h("p.soft", a("about"))];
  return h("main.sign-in", h("header", brand), card);
}
