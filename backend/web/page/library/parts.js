/** What the library's views are made of: making an item, changing it, its picture. */
import { api } from "../core/api.js";
import { attempt, dialog, undoable } from "../core/dialogs.js";
import { act, h, refill } from "../core/dom.js";
import { autoform, progress, sendform } from "../core/form.js";
import { dropping, pick } from "../core/importing.js";
import { t } from "../core/words.js";
import { face, repictured } from "./faces.js";

/** The tabs between characters and personas. */
export const tabs = (at) =>
  h(
    "nav.tabs",
    { "aria-label": t("library.tabs") },
    ["characters", "personas"].map((each) =>
      h("a", { href: `#/${each}`, "aria-current": each === at && "page" }, t(`library.${each}`)),
    ),
  );

/** Ask for the name of a new item of a store, and make it; `made` has it then. */
export const naming = (store, title, made) =>
  dialog(title, (close) =>
    sendform({
      fields: [{ name: "name", label: t("common.name"), required: true, most: 200 }],
      submit: t("library.make"),
      async send(values) {
        const item = await api.post(store.path, values);
        store.changed();
        close();
        made(item);
      },
    }).element,
  );

/** A form over an item, which saves its changes against the revision that is known. */
export const editing = (store, item, groups, signal, told) =>
  autoform({
    groups,
    value: { ...item },
    signal,
    async save(changes) {
      const options = { ifMatch: item.revision, keepalive: true };
      Object.assign(item, await api.patch(`${store.path}/${item.id}`, changes, options));
      if (signal.aborted) store.changed();
      else {
        store.drop();
        told();
      }
      return { ...item };
    },
  });

/** An item's picture, replaced by a press or by dropping another on it. */
export function portrait(store, item, signal) {
  const path = `${store.path}/${item.id}/avatar`;
  const box = h("div.portrait");
  let shown;
  const draw = (is, bar) => {
    shown = item.has_avatar = is;
    const label = t(is ? "library.picture_other" : "library.picture_add");
    const picture = face(item, { kind: store.path.slice(1), size: "full" });
    refill(
      box,
      h("button.poster", { type: "button", onclick: choose }, picture, h("small", {}, label)),
      bar ?? (is && act("delete", t("library.picture_remove"), drop, "quiet")),
    );
  };
  const done = (is) => {
    repictured(item.id);
    store.changed();
    return is;
  };
  const put = async ([file]) => {
    const before = shown;
    const bar = progress(t("library.sending"));
    draw(before, bar.element);
    const onprogress = (share) => bar.show(share < 1 ? share : null);
    const sent = await attempt(async () => {
      await api.upload(path, file, { method: "PUT", onprogress });
      return done(true);
    });
    draw(sent ?? before);
  };
  const choose = () => pick("image/png,image/jpeg,image/webp,image/gif", put);
  const drop = () =>
    undoable(t("library.picture_removed"), {
      hide: () => draw(false),
      act: async (options) => {
        // Another may be there by now.
        if (shown) return;
        await api.delete(path, undefined, options);
        done(false);
      },
      show: () => draw(true),
    });
  dropping(box, box, put, signal);
  draw(item.has_avatar);
  return box;
}
