/** Import and export: files of any kind, earlier imports, and the archive of the account. */
import { act, api, attempt, combine, fill, h, icon, isPending, on, session, size, timed } from "../core.js";
import { areas } from "../account/parts.js";
import { archive } from "./archive.js";
import { files, i, summary } from "./files.js";
import { steps } from "./moving.js";

const section = (name, ...content) => h("section.stack", h("h2", i(name)), content);

/** An earlier import, with a link to its results. */
const line = (item) =>
  h("li",
    icon(item.state === "finished" && !item.counts.failed ? "check" : item.state === "running" ? "upload" : "alert"),
    h("div.grow",
      h("a.clip", { href: `#/imports/${item.id}` }, item.name),
      h("small.soft", combine([i(`states.${item.state}`), summary(item), item.size > 0 && size(item.size)]))),
    timed(item.created_at, "help"));

const backups = () =>
  section("backups",
    h("p", i("backups_help")),
    h("pre.commands", { tabindex: 0, role: "region", label: i("backups") },
      h("code", "talekeeper backup FILE\ntalekeeper restore FILE\ntalekeeper doctor")),
    h("p", i("backups_schedule")),
    h("p.help", i("backups_key")));

/** Route: #/imports */
export default async function ({ signal, title }) {
  title(i("title"));
  const list = h("ul.list", { label: i("earlier") });
  const earlier = section("earlier", list);
  const draw = async () => {
    const items = (await api.all("/imports", { signal })).filter(({ id }) => !isPending(`/imports/${id}`));
    earlier.hidden = !items.length;
    fill(list, items.map(line));
  };
  on(window, "imports-changed pending", () => attempt(draw), signal);
  await draw();
  return h("div.page.narrow",
    h("header", h("h1", i("title"))),
    areas("imports"),
    section("files",
      h("p", i("files_help")),
      h("div", act("upload", i("choose"), () => files.choose(), "primary"))),
    section("moving.title", steps()),
    earlier,
    section("chats", h("p", i("chats_help"))),
    await archive(signal),
    session.user.is_administrator && backups());
}
