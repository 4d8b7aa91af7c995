/**
 * The stage of a played turn: the mood, the model's actions, and the question that it waits with.
 */
import { api, complain, fill, h, has, icon, on, settled, style, t } from "../core.js";
import { figuresLink } from "../models/picker.js";
import { pause } from "./downtime.js";

const p = (path, values) => t(`play.${path}`, values);
/** A word of the rules as text. Words of custom rules are shown as they are. */
export const named = (word) => (has(`play.words.${word}`) ? p(`words.${word}`) : word.replaceAll("_", " "));

/** The faces of a die in Unicode. */
export const FACES = "⚀⚁⚂⚃⚄⚅";

/**
 * The line of the mood, the current action, and the question of a waiting turn, between the
 * messages and the composer.
 *
 * Listens for the room's events "played" and "waiting".
 */
export function stage(room) {
  const { signal, events } = room;
  style("play");
  const mood = h("p.mood", { role: "status" });
  const rest = h("span.rest");
  const doing = h("p.soft.doing", { role: "status" });
  const untold = h("p.untold", { role: "status" });
  const question = h("section.question", { hidden: true });
  const element = h("div.stage", h("div.row", mood, rest), untold, doing, question);
  let isPlayed = false;

  /** Warn that the model cannot call tools, so that nothing is rolled or changed. */
  const warn = () => {
    const { id, tool_support: support } = room.model ?? {};
    const words = [p("no_tools"), " ", figuresLink(id, p("no_tools_change"))];
    fill(untold, isPlayed && support === "none" && words);
  };
  on(events, "asked", warn, signal);

  /** Show the mood of the active path, and the button for downtime. */
  const read = async () => {
    const { campaign_id: id } = room.chat;
    const campaign = id && (await api.get(`/campaigns/${id}`, { signal }));
    const play = campaign?.attributes.play ?? {};
    // The changes of a waiting turn apply once it has ended.
    if (!room.waiting) tune(play);
    isPlayed = Boolean(campaign?.settings.tools);
    warn();
    const idle = campaign?.settings.tools && !room.waiting && (await pause(campaign, play, soon, signal));
    // A turn may have stopped for a choice in the meantime.
    fill(rest, !room.waiting && idle);
  };
  const soon = settled(() => room.busy || read().catch(complain), 250, signal);
  on(events, "turn", soon, signal);
  let end;
  on(room.path, "change", () => end !== (end = room.path.last()?.id) && soon(), signal);
  soon();

  const tune = ({ mood: name, variant, position, effect }) => {
    const chat = element.closest(".chat");
    if (chat) chat.dataset.mood = name ?? "";
    const words = [name, variant, position && position !== variant && position, effect].filter(Boolean);
    fill(mood, words.map((word, at) => h("span", { class: at ? "tag" : "name" }, named(word))));
  };

  const heard = {
    "mood.changed": tune,
    "tool.used": ({ name, summary }) => fill(doing, icon("spark"), summary || named(name)),
    "calls.requested": () => fill(doing, icon("spark"), p("asks_for_calls")),
  };
  on(events, "played", ({ detail: { event, data } }) => heard[event]?.(data), signal);
  on(events, "busy", () => room.busy || fill(doing), signal);

  /** Send the chosen option. */
  const take = async (option) => {
    const buttons = [...question.querySelectorAll("button")];
    for (const each of buttons) each.disabled = true;
    try {
      await (option ? room.choose(option.id, option.text) : room.abandon());
    } catch (error) {
      complain(error);
      for (const each of buttons) each.disabled = false;
    }
  };
  const offer = (option) => h("li",
    h("button.option", { onclick: () => take(option) },
      option.die && h("span.pips", { "aria-hidden": "true" }, FACES[option.die - 1]),
      h("span.grow", h("b", option.label), option.detail && h("small", option.detail))));
  /** An answer in the player's own words. */
  const answer = (id) => {
    const said = h("input.grow", { maxlength: 2000, required: true, label: p("own") });
    const onsubmit = (event) => {
      event.preventDefault();
      const text = said.value.trim();
      if (text) take({ id, text });
    };
    return h("form.own", { onsubmit }, said, h("button", { type: "submit" }, p("answer")));
  };
  const ask = () => {
    const { waiting } = room;
    question.hidden = !waiting;
    if (!waiting) return fill(question);
    fill(rest);
    const { kind, prompt, options, own } = waiting.waiting;
    question.ariaLabel = p(kind);
    fill(question,
      h("p.asks", { tabindex: -1 }, prompt),
      h("ol.options", { class: kind }, options.map(offer)),
      own && answer(own),
      h("button.quiet", { onclick: () => take(null) }, p("abandon")));
    room.announce(`${prompt} ${options.map(({ label }) => label).join(", ")}`);
    question.querySelector("p").focus({ preventScroll: true });
  };
  on(events, "waiting", ask, signal);
  ask();
  return element;
}
