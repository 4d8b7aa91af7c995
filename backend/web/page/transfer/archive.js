/** The archive of the account: everything in one zip file, made by a job. */
import {
  act, api, attempt, commit, dateTime, download, fill, h, has, isPending, on, progress, sendLater,
  size, t,
} from "../core.js";
import { followJob } from "../core/jobs.js";
import { i } from "./files.js";

const a = (name, values) => t(`archive.${name}`, values);
const PATH = "/me/archive";

/** The state of the archive with its actions. It follows the job until the signal aborts. */
export async function archiveBox(signal) {
  const said = h("p", { role: "status" });
  const acts = h("div.row");
  const bar = progress(a("making"));
  const read = async () => {
    try {
      return await api.get(`${PATH}/status`, { signal });
    } catch (error) {
      if (error.status !== 404) throw error;
      return null;
    }
  };
  const begin = () => attempt(async () => {
    await commit();
    show(await api.post(PATH));
  });
  const remove = () => sendLater(t("common.deleted", { name: a("title") }), PATH, { then: () => (now = null) });
  const make = (name = "begin") => act("copy", a(name), begin);

  const say = (text, ...buttons) => {
    said.textContent = text;
    bar.element.hidden = true;
    fill(acts, buttons);
  };
  let now;
  const show = (item = now) => {
    now = item;
    if (isPending(PATH)) return say("");
    if (!item) return say("", make());
    const { state, job, size: bytes, unreadable: count, created_at: when, expires_at: until } = item;
    if (state === "ready") {
      const ready = a("ready", { when: dateTime(when), size: size(bytes), until: dateTime(until) });
      return say(count ? `${ready} ${a("unreadable", { count })}` : ready,
        act("download", a("download"), () => download(PATH), "primary"),
        make("renew"),
        act("delete", a("delete"), remove, "quiet"));
    }
    if (state !== "making") return say(a(has(`archive.${job?.error}`) ? job.error : state), make());
    const stop = () => attempt(() => api.post(`/jobs/${job.id}/stop`));
    say(a("working"), act("stop", i("stop"), stop));
    bar.show(null);
    bar.element.hidden = false;
    attempt(() => follow(job));
  };
  const follow = async ({ id }) => {
    await followJob(id, signal, ({ progress: { done, total } }) => bar.show(total ? done / total : null));
    show(await read());
  };

  on(window, "pending", () => show(), signal);
  show(await read());
  return h("div.stack", said, bar.element, acts);
}

export async function archive(signal) {
  return h("section.stack.archive", h("h2", a("title")), h("p", a("help")), await archiveBox(signal));
}
