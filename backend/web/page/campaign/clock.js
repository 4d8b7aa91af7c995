/** Clocks: circles of segments that are filled with a click or the arrow keys. */
import { set, svg } from "../core.js";
import { c } from "./parts.js";

const KEYS = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, Home: -8, End: 8 };
const RADIUS = 20;

/** A segment of a circle, clockwise from the top. */
function wedge(at, count) {
  const point = (turn) => {
    const angle = 2 * Math.PI * (turn / count - 0.25);
    return `${(RADIUS * Math.cos(angle)).toFixed(2)} ${(RADIUS * Math.sin(angle)).toFixed(2)}`;
  };
  return `M0 0L${point(at)}A${RADIUS} ${RADIUS} 0 0 1 ${point(at + 1)}Z`;
}

/** The last drawn state of each clock, by id. */
const drawn = new Map();

/** A clock that the user can turn. `turn(filled)` gets the new state. New segments are animated. */
export function dial({ id, name, segments, filled, kind }, turn) {
  const before = drawn.get(id) ?? filled;
  drawn.set(id, filled);
  const to = (count) => {
    const next = Math.max(0, Math.min(segments, count));
    if (next !== filled) turn(next);
  };
  const said = c("filled", { filled, segments });
  const onkeydown = (event) => {
    const step = KEYS[event.key];
    if (!step) return;
    event.preventDefault();
    to(filled + step);
  };
  const part = (_, at) => svg("path", {
    d: wedge(at, segments),
    class: at >= filled ? "free" : at < before ? "full" : "full new",
    // A click on the last full segment empties it.
    onclick: () => to(at + 1 === filled ? at : at + 1),
  });
  return set(svg("svg", { viewBox: "-22 -22 44 44", onkeydown }, Array.from({ length: segments }, part)), {
    class: `dial ${kind}`,
    role: "slider",
    tabindex: 0,
    label: name,
    "aria-valuemin": 0,
    "aria-valuemax": segments,
    "aria-valuenow": filled,
    "aria-valuetext": said,
  });
}
