/** Form fields for JSON values, and merge patches. */
import { on } from "./dom.js";
import { control } from "./form.js";
import { t } from "./words.js";

const isObject = (value) => value?.constructor === Object;

/**
 * A field for a JSON object, with the interface of `control`. An empty field is null. `form` is
 * "array" for a list, or "text" for an object whose text is the value.
 */
export function json(field) {
  const made = control({ ...field, kind: "area" });
  const { input } = made;
  const { form = "object" } = field;
  const read = () => {
    const text = input.value.trim();
    let value = null;
    let fault = "";
    try {
      value = text ? JSON.parse(text) : null;
      if (text && !(form === "array" ? Array.isArray(value) : isObject(value))) fault = t(`form.json.${form}`);
    } catch (error) {
      fault = t("form.json.broken", { why: error.message });
    }
    input.setCustomValidity(fault);
    return form === "text" && value ? text : value;
  };
  on(input, "input", read);
  return {
    ...made,
    read,
    write(value) {
      made.write(value && form !== "text" ? JSON.stringify(value, null, 2) : value);
      read();
    },
  };
}

/** Return the merge patch (RFC 7396) between two values. Removed members are null in it. */
export function mergePatch(before, now) {
  if (!isObject(before) || !isObject(now)) return now;
  const patch = {};
  for (const name of Object.keys(before)) if (!(name in now)) patch[name] = null;
  for (const [name, value] of Object.entries(now)) patch[name] = mergePatch(before[name], value);
  return patch;
}
