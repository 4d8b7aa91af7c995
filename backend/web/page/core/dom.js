/** Build elements without HTML, so that text is never interpreted as markup. */

/**
 * Create an element.
 *
 * `h("button.primary", { onclick: save, label: "Save" }, icon("check"))`
 *
 * @param {string} what Tag name, followed by classes with dots.
 * @param {object} [attributes] `on…` are listeners, and clicks are ignored while the promise of the
 *   last one is pending; true sets a bare attribute; false, null and
 *   undefined leave it out; `value`, `checked`, `selected`, `indeterminate` are properties; `vars`
 *   sets custom properties of its style; `label` and `pressed` are `aria-label` and `aria-pressed`.
 * @param {...(Node|string|number|null|false|Array)} children
 */
export function h(what, ...parts) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.classList.add(...classes);
  // Other buttons would submit the form around them.
  if (tag === "button") element.type = "button";
  if (parts[0]?.constructor === Object) set(element, parts.shift());
  return fill(element, ...parts);
}

const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate", "disabled", "hidden"]);
const ARIA = { label: "ariaLabel", pressed: "ariaPressed" };

/** Set attributes of an element, as `h` does. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") on(element, "click", alone(element, value));
    else if (name.startsWith("on")) on(element, name.slice(2), value);
    else if (name === "vars") {
      for (const [key, each] of Object.entries(value)) element.style.setProperty(`--${key}`, each);
    } else if (name === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (PROPERTIES.has(name)) element[name] = value ?? "";
    else if (name in ARIA) element[ARIA[name]] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
    else element.removeAttribute(name);
  }
  return element;
}

/** Listen for events, whose names are words of a text, until the signal aborts. */
export function on(target, names, act, signal) {
  for (const name of names.split(" ")) target.addEventListener(name, act, { signal });
}

/** Return a handler that ignores events until its last promise has settled. */
const alone = (element, does) => async (event) => {
  if (element.ariaBusy) return;
  const running = does(event);
  if (!running?.finally) return;
  element.ariaBusy = "true";
  await running.finally(() => (element.ariaBusy = null));
};

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

const flat = (children) =>
  children.flat(Infinity).filter((child) => child != null && typeof child !== "boolean");

/** Tabs: links `[name, text, address]`. `here` is the name of the current one. */
export function tabs(label, here, places) {
  const links = places.map(([name, text, href]) => h("a", { href, "aria-current": name === here && "page" }, text));
  // On a phone, the current tab may be outside the visible part.
  requestAnimationFrame(() => links[places.findIndex(([name]) => name === here)]?.scrollIntoView({ block: "nearest", inline: "center" }));
  return h("nav.tabs", { label }, links);
}

const SVG = "http://www.w3.org/2000/svg";
/** Create an SVG element. */
export const svg = (tag, attributes, ...children) =>
  fill(set(document.createElementNS(SVG, tag), attributes), ...children);

/** The address of a file of the page. */
export const asset = (name) => new URL(`../${name}`, import.meta.url).pathname;

const ICON = svg("svg", { class: "icon", "aria-hidden": "true", viewBox: "0 0 24 24" });
const shapes = new XMLHttpRequest();
shapes.open("GET", asset("icons.svg"));
shapes.responseType = "document";
shapes.send();

/**
 * An icon of icons.svg. Screen readers ignore it, so its parent needs a name. Shapes are copied,
 * because `use` elements take a third of a frame while messages scroll.
 */
export function icon(name) {
  const element = ICON.cloneNode();
  const draw = () => element.append(...(shapes.response?.getElementById(name)?.cloneNode(true).children ?? []));
  if (shapes.response) draw();
  else shapes.addEventListener("load", draw);
  return element;
}

/** A button with an icon. A "quiet" button shows only the icon. */
export function act(sign, label, onclick, look = "") {
  const attributes = { class: look, onclick };
  if (!look.includes("quiet")) return h("button", attributes, icon(sign), label);
  return h("button", { ...attributes, label, title: label }, icon(sign));
}

/**
 * Debounce `act`. `.now()` calls it at once, `.drop()` cancels the call, as does the signal.
 */
export function settled(act, milliseconds = 300, signal) {
  let timer = 0;
  const drop = () => {
    clearTimeout(timer);
    timer = 0;
  };
  const now = () => {
    if (!timer) return undefined;
    drop();
    return act();
  };
  const later = () => {
    drop();
    timer = setTimeout(now, milliseconds);
  };
  if (signal) on(signal, "abort", drop);
  return Object.assign(later, { now, drop });
}

/** Wait for some milliseconds, or until the signal aborts. */
export const pause = (milliseconds, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", resolve, { once: true });
  });

const sheets = new Map();
const wanted = new Set();

/** Load a style sheet of style/. The promise resolves once it applies. */
export function style(name) {
  if (!sheets.has(name)) {
    const link = h("link", { rel: "stylesheet", href: asset(`style/${name}.css`) });
    link.loaded = new Promise((resolve) => (link.onload = link.onerror = resolve));
    sheets.set(name, link);
    document.head.append(link);
  }
  const { sheet, loaded } = sheets.get(name);
  if (sheet) sheet.disabled = false;
  wanted.add(name);
  return loaded;
}

/** Begin a new view. Returns a function that removes the style sheets of earlier views. */
export function restyle() {
  wanted.clear();
  return () => {
    for (const [name, { sheet }] of sheets) if (sheet) sheet.disabled = !wanted.has(name);
  };
}
