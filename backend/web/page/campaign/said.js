/** Values of items as text, for the change log and comparisons. */
import { has, number } from "../core.js";
import { c } from "./parts.js";

const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
/** Fields whose values have texts of their own. */
const CHOICES = ["kind", "tension", "priority", "status", "audience", "source"];

/** Return the text of a field's value: items by name, lists comma-separated. */
export function said(key, value, world) {
  if (value == null || value === "") return c("nothing");
  if (typeof value === "boolean") return c(value ? "yes" : "no");
  if (typeof value === "number") return number(value);
  if (Array.isArray(value)) return value.length ? value.map((each) => said(key, each, world)).join(", ") : c("nothing");
  if (typeof value === "object") {
    if ("text" in value) return `${value.done ? "✓ " : ""}${value.text}`;
    const members = Object.entries(value).map(([name, each]) => `${name}: ${said(name, each, world)}`);
    return members.join("; ") || c("nothing");
  }
  if (ID.test(value)) return world.name(value) || c("gone");
  return CHOICES.includes(key) && has(`campaign.values.${value}`) ? c(`values.${value}`) : value;
}

/** The author of a change. */
export const whose = (actor) => c(`actors.${actor}`);
