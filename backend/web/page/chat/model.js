/** The model of a chat, shown under its name. A click changes it. */
import { api, attempt, h, icon, on, set } from "../core.js";
import { choose, m } from "../models/picker.js";
import { dropped, removed } from "../models/sampling.js";
import { word } from "./fields.js";

/**
 * The button for the model of a room. `room.switchModel` clicks it.
 *
 * `room.model` is the current model, `room.settings` are the chat's settings. The event "asked"
 * reports that they are known or have changed.
 */
export function asked(room) {
  const own = `/chats/${room.chat.id}/settings`;
  const name = h("span.clip");
  const button = h("button.quiet.asked", { "aria-haspopup": "dialog", hidden: true, onclick: () => room.switchModel() }, name, icon("down"));
  let settings, models;
  const find = (id) => models.find((each) => (id ? each.id === id : each.is_default));
  const draw = () => {
    Object.assign(room, { settings, model: find(settings.model) });
    const title = room.model?.title ?? word("gone", { value: settings.model });
    name.textContent = title;
    set(button, { hidden: false, label: m("asked", { model: title }), title: m("asked", { model: title }) });
    room.events.dispatchEvent(new Event("asked"));
  };
  const { signal } = room;
  const read = async () => {
    [settings, models] = await Promise.all([api.get(own, { signal }), api.all("/models", { signal })]);
  };
  const change = async () => {
    await read();
    const usual = word("usual_is", { value: find(null)?.title });
    const options = [[null, usual], ...models.map(({ id, title }) => [id, title])];
    const chosen = await choose(word("model"), options, models, settings.model ?? null);
    if (chosen === undefined) return;
    const before = settings;
    const gone = dropped(find(chosen), before.sampling);
    await write({ model: chosen, sampling: gone });
    removed(room.model, gone, before, write);
  };
  const write = async (patch) => {
    settings = await api.patch(own, patch);
    draw();
    room.announce(button.ariaLabel);
    room.events.dispatchEvent(new CustomEvent("model", { detail: settings }));
  };
  room.switchModel = async () => {
    if (button.ariaBusy) return;
    button.ariaBusy = "true";
    await attempt(change);
    button.ariaBusy = null;
  };
  on(room.events, "settings", ({ detail }) => {
    settings = detail;
    draw();
  });
  // The chat works without the model's name, so errors are ignored.
  const show = () => read().then(draw).catch(() => {});
  // After a turn it may be known how the model calls tools.
  let isTried = false;
  on(room.events, "played", ({ detail: { event } }) => (isTried ||= event === "calls.requested"), signal);
  on(room.events, "turn", () => {
    if (isTried) show();
    isTried = false;
  }, signal);
  show();
  return button;
}
