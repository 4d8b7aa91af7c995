/** A card of a world's item, with a form that unfolds below it. */
import { act, attempt, autoform, control, deleting, fill, h, icon, more, on, set, t } from "../core.js";
import { fieldsOf, patchOf } from "./fields.js";
import { c, flat, label } from "./parts.js";
import { VIEWS } from "./views.js";
import { called } from "./world.js";

/** Locks apply to whole fields. All attributes share one. */
const lockOf = (name) => name.split(".")[0];

/**
 * A form that saves automatically and has a lock beside each field. The model cannot change locked
 * fields.
 *
 * @param {object} options `groups` and `value` as for `autoform`; `locked()` returns the names of
 *   the locked fields; `save(patch)` returns a promise of the new value.
 * @returns {{form, relock}} `relock()` shows the current locks.
 */
export function locking({ fields, value, locked, save, signal }) {
  const locks = [];
  const lockable = (field) => ({
    ...field,
    control(own) {
      const made = (field.control ?? control)(own);
      const name = lockOf(own.name);
      const toggle = () => {
        const has = locked();
        save({ locked: has.includes(name) ? has.filter((each) => each !== name) : [...has, name] });
      };
      const button = act("unlock", "", toggle, "quiet lock");
      locks.push(() => {
        const is = locked().includes(name);
        const title = c(is ? "unlock" : "lock", { field: own.label });
        set(fill(button, icon(is ? "lock" : "unlock")), { label: title, title, pressed: is });
      });
      made.element.querySelector(".label").append(button);
      return made;
    },
  });
  const form = autoform({
    groups: [{ fields: fields.map(lockable) }],
    value,
    signal,
    save: (changes) => save(patchOf(changes), true),
  });
  const relock = () => locks.forEach((each) => each());
  relock();
  return { form, relock };
}

/**
 * A card of an item. `closed()` is called when its form is folded. `extra(item, world)` returns
 * additional content.
 *
 * @returns {{id, element, isOpen, show}} `show(item)` shows the current item.
 */
export function card(world, kind, first, signal, { closed, extra } = {}) {
  let item = first;
  const view = h("div.view");
  const body = h("div.edit");
  const element = h("li.thing", { class: `${kind} ${item.kind ?? ""}` }, view, body);
  const shape = () => [{ fields: fieldsOf(kind, world, item) }];
  const value = () => ({ ...flat(item, shape()), attributes: item.attributes });
  let open = null;
  // The revision that the form was filled from.
  let revision;

  const close = async () => {
    await open?.form.flush();
    const had = body.contains(document.activeElement);
    open = null;
    fill(body);
    element.classList.remove("open");
    closed?.();
    if (had) element.querySelector("button")?.focus();
  };
  const edit = (name) => {
    if (!open) {
      revision = item.revision;
      open = locking({
        fields: shape()[0].fields,
        value: value(),
        locked: () => item.locked,
        signal,
        async save(patch, isTyped) {
          const change = async () => ({ revision } = await world.change(kind, item, patch, () => revision));
          return isTyped ? change() : attempt(change);
        },
      });
      fill(body, open.form.element, h("footer", h("button", { onclick: close }, t("common.done"))));
      element.classList.add("open");
    }
    const named = name && body.querySelector(`[name="${name}"]`);
    (named || body.querySelector("input, textarea, select")).focus();
  };
  const menu = () => more(c("acts", { name: called(item) }), [
    { label: t("common.edit"), icon: "edit", act: edit },
    ...presence(),
    ...(kind === "scene" && item.status === "open"
      ? [{ label: c("end_scene"), icon: "check", act: () => attempt(() => world.close(item)) }]
      : []),
    deleting(() => attempt(() => world.remove(kind, item))),
  ]);
  /** Menu items for the presence of an entity in the open scene. */
  const presence = () => {
    const { scene } = world;
    if (kind !== "entity" || !scene || !/pc/.test(item.kind)) return [];
    const is = scene.present.includes(item.id);
    const present = is ? scene.present.filter((id) => id !== item.id) : [...scene.present, item.id];
    return [{ label: c(is ? "goes" : "comes"), icon: "people", act: () => world.press("scene", scene, { present }) }];
  };
  on(element, "keydown", (event) => {
    if (event.key !== "Escape" || !open) return;
    event.preventDefault();
    event.stopPropagation();
    close();
  });
  const show = (now) => {
    item = now;
    const locks = item.locked.map(label).join(", ");
    const stops = () => [...view.querySelectorAll("button, input, [tabindex]")];
    const at = stops().indexOf(document.activeElement);
    fill(view, VIEWS[kind](item, world, edit),
      locks && h("p.row.soft.locks", icon("lock"), h("small", c("locked", { fields: locks }))),
      extra && extra(item, world),
      menu());
    // The focus stays in the same place.
    if (at >= 0) (stops()[at] ?? stops()[0]).focus({ preventScroll: true });
    if (!open) return;
    if (!open.form.isUnsaved) {
      open.form.write(value());
      ({ revision } = item);
    }
    open.relock();
  };
  show(first);
  return { id: first.id, element, show, get isOpen() { return Boolean(open); } };
}
