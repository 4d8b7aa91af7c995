/** A picture that can be replaced and removed. Both can be undone. */
import { api, problemOf, send } from "./api.js";
import { attempt, commit, isPending, sendLater, toast, UNDO_SECONDS } from "./dialogs.js";
import { on } from "./dom.js";
import { progress } from "./form.js";
import { dropping, pick } from "./importing.js";
import { t } from "./words.js";

/** Types of pictures that the server reads. */
export const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/**
 * The picture at `path`. It is shown in `box`, where another one can be dropped.
 *
 * @param {object} options `has()`: true if there is a picture; `draw()` shows it, or that there is
 *   none; `changed(is)` is called after each change on the server; `removed`: the text of a removal.
 * @returns {{has, choose, remove}} `has()` is false as well while a removal can be undone.
 */
export function picture(path, box, { has, draw, changed, removed, signal }) {
  const put = async (file) => {
    const bar = progress(t("picture.sending"));
    box.append(bar.element);
    const onprogress = (share) => bar.show(share < 1 ? share : null);
    const sent = await attempt(async () => {
      await api.upload(path, file, { method: "PUT", onprogress });
      return true;
    });
    bar.element.remove();
    if (sent) changed(true);
    return sent;
  };
  /** The picture as the server has stored it. Sent again, it does not change. */
  const read = async () => {
    const response = await send(path);
    if (!response.ok) throw await problemOf(response);
    return response.blob();
  };
  const replace = ([file]) => attempt(async () => {
    // A picture that is being removed does not come back, and the new one is not removed.
    const isLeaving = isPending(path);
    if (isLeaving) await commit();
    const before = !isLeaving && has() && (await read());
    const onaction = async () => {
      // The new one may be being removed.
      await commit();
      await put(before);
    };
    if ((await put(file)) && before) {
      toast(t("picture.replaced"), { action: t("common.undo"), seconds: UNDO_SECONDS, onaction });
    }
  });
  dropping(box, box, replace, signal);
  on(window, "pending", ({ detail }) => detail.includes(`DELETE ${path}`) && draw(), signal);
  return {
    has: () => has() && !isPending(path),
    choose: () => pick(TYPES.join(), replace),
    remove: () => sendLater(removed, path, { then: () => changed(false) }),
  };
}
