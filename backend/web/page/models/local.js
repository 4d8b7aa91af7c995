/** Model servers that run on the machine of the server, for administrators. */
import { act, api, attempt, fill, h, icon, session, toast } from "../core.js";
import { PATH, test } from "./parts.js";
import { m } from "./picker.js";

/** Read the servers that have no provider yet. Only administrators may ask. */
const found = async (signal) =>
  session.user.is_administrator ? (await api.get(`${PATH}/local`, { signal })).items : [];

/** A row for a server: its models, and a button that adds it. `done()` is called after that. */
function row({ preset, title, base_url: url, models, is_used: isUsed }, done) {
  const report = h("div.stack");
  const provider = { preset, base_url: url };
  const use = () => attempt(async () => {
    const tested = await test(() => api.post(`${PATH}/test`, provider), report, {});
    if (!tested?.ok) return;
    const made = await api.post(PATH, provider);
    await api.get(`${PATH}/${made.id}/models`).catch(() => {});
    toast(m("added", { name: made.name }));
    done();
  });
  const names = models.length ? models.slice(0, 5).join(", ") : m("local_empty");
  return h("li",
    icon("spark"),
    h("div.grow", h("div", m("local_runs", { title })), h("small.help", names), report),
    isUsed ? h("span.soft", m("local_used")) : act("check", m("local_use", { title }), use, "primary"));
}

/** Rows for servers that are not used yet. They appear once they are found. */
export function offers(done, signal) {
  const list = h("ul.list", { label: m("local_found") });
  const draw = async () => {
    const items = await found(signal);
    fill(list, items.filter((each) => !each.is_used).map((each) => row(each, then)));
    list.hidden = !list.hasChildNodes();
  };
  const then = () => {
    done();
    draw();
  };
  // The page works without this search, so errors are ignored.
  draw().catch(() => {});
  return list;
}

/** The section of all servers. */
export async function local(signal) {
  const list = h("ul.list", { label: m("local_found") });
  const none = h("p.soft", m("local_none"));
  const read = async () => {
    const items = await found(signal);
    none.hidden = items.length > 0;
    fill(list, items.map((each) => row(each, () => attempt(read))));
  };
  await read();
  return h("section.stack",
    h("div", h("h2", m("local_title")), h("small.help", m("local_help"))),
    none, list, h("div", act("again", m("local_again"), () => attempt(read))));
}
