/** Render Markdown of stories as elements, in linear time. Text is never interpreted as HTML. */
import { h, icon } from "./dom.js";

const DEEPEST = 12; // nested blocks
const WAITING = 64; // marks that may still be closed

const QUOTE = /^ {0,3}> ?/;
const ITEM = /^ {0,3}(?:[-+*]|(\d{1,9})[.)])(?: +|$)/;
const RULE = /^ {0,3}([-*_]) *(?:\1 *){2,}$/;
const BREAK = /^ {0,3}(?:#{1,6}(?: |$)|>|```|~~~|(?:[-+*]|1[.)]) +\S|([-*_]) *(?:\1 *){2,}$)/;
const PAIRS = { "*": "*", _: "_", "~": "~", '"': '"', "“": "”", "„": "“”", "«": "»", "»": "«" };
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0" };

const split = (text) => text.split("\n").map((line) => line.trimEnd().replaceAll("\t", "    "));

/** Render a text as a fragment. */
export const markdown = (text) => put(new DocumentFragment(), blocks(split(text), 0));

/**
 * Render a growing text: `write(text)` shows the whole text and renders only its last blocks again.
 * Open marks look closed, so that the text does not jump. `write(text, true)` ends this.
 */
export function growing(element) {
  let [shown, from, settled] = ["", 0, 0];
  return {
    write(text, whole) {
      if (!text.startsWith(shown)) from = settled = 0;
      shown = text;
      const lines = split(text.slice(from));
      const made = blocks(lines, 0, !whole);
      while (element.childNodes[settled]) element.lastChild.remove();
      put(element, made);
      // Once a block is followed by two lines, neither it nor the blocks before it can change.
      const last = made.findLastIndex(({ line }) => line < lines.length - 2);
      settled += Math.max(last, 0);
      for (let line = made[last]?.line; line > 0; line--) from = text.indexOf("\n", from) + 1;
    },
  };
}

/** Append nodes, texts, and unclosed marks. */
function put(element, items) {
  for (const item of items) element.append(item.raw ?? item);
  return element;
}

const cells = (line) => line.replace(/^ *\||\| *$/g, "").split(/(?<!\\)\|/);

function blocks(lines, depth, open) {
  const made = [];
  let at = 0;
  const take = (test) => {
    const first = at;
    while (++at < lines.length && test(lines[at]));
    return lines.slice(first, at);
  };
  const nest = (tag, inner) => put(h(tag), blocks(inner, depth + 1, open && at >= lines.length));
  const say = (tag, text) => put(h(tag), inline(text.trim(), open && at >= lines.length));
  const row = (tag, line) => h("tr", cells(line).map((cell) => say(tag, cell)));
  const isTable = () =>
    /^[ |:]*-[ |:-]*$/.test(lines[at + 1]) &&
    lines[at].includes("|") && cells(lines[at]).length === cells(lines[at + 1]).length;
  const item = (width) => {
    const indent = (line) => Math.min(width, line.search(/\S|$/));
    let blank;
    const inner = take((line) => {
      const stays = !line || indent(line) === width || !(blank || BREAK.test(line) || ITEM.test(line));
      blank = !line;
      return stays;
    });
    const element = nest("li", inner.map((line, place) => line.slice(place ? indent(line) : width)));
    const first = element.firstChild;
    if (first?.tagName === "P") first.replaceWith(...first.childNodes);
    return element;
  };
  const block = (line) => {
    const [, fence] = /^ {0,3}(`{3,}|~{3,}(?!~))[^`]*$/.exec(line) ?? [];
    const [hashes] = /^ {0,3}#{1,6}(?= |$)/.exec(line) ?? [];
    let mark = depth < DEEPEST && ITEM.exec(line);
    if (fence) {
      const code = take((each) => each.trim() !== fence).slice(1).join("\n");
      return at++, h("pre", h("code", code));
    }
    // Headings of a text come below the headings of the view.
    const level = Math.min(6, hashes?.trim().length + 2);
    if (hashes) return at++, say(`h${level}`, line.slice(hashes.length).replace(/ #+$/, ""));
    if (RULE.test(line)) return at++, h("hr");
    if (depth < DEEPEST && QUOTE.test(line)) {
      return nest("blockquote", take((each) => QUOTE.test(each)).map((each) => each.replace(QUOTE, "")));
    }
    if (mark) {
      const start = mark[1];
      const list = h(start ? "ol" : "ul", { start: start > 1 && start });
      for (; mark && !mark[1] === !start; mark = ITEM.exec(lines[at])) list.append(item(mark[0].length));
      return list;
    }
    if (isTable()) {
      const [head, , ...body] = take((each) => /[|-]/.test(each));
      return h("table", row("th", head), body.map((each) => row("td", each)));
    }
    return say("p", take((each) => each && !BREAK.test(each) && !isTable()).join("\n").replace(/^ +/gm, ""));
  };
  while (at < lines.length) {
    const line = at;
    if (lines[at]) made.push(Object.assign(block(lines[at]), { line }));
    else at++;
  }
  return made;
}

/** Render a paragraph: texts, nodes, and unclosed marks. */
function inline(text, open) {
  const out = [];
  const stack = [];
  let at = 0;
  let m;
  const is = (pattern) => ((pattern.lastIndex = at), (m = pattern.exec(text)));
  const wait = (kind, raw) => {
    const mark = { kind, raw, at: out.length };
    if (stack.push(mark) > WAITING) stack.shift();
    return mark;
  };
  const find = (end) => stack.findLastIndex(({ kind }) => kind === end || PAIRS[kind]?.includes(end));
  /** Remove and return the items after a mark. Marks among them become text. */
  const taken = (place) => out.splice(stack.splice(place)[0].at).slice(1);
  /** Close a mark. Returns the rest of its run. */
  const close = (place, run) => {
    const { kind, raw } = stack[place];
    const inside = taken(place);
    if (!/[*_~]/.test(kind)) return out.push(put(h("q"), [raw, ...inside, run])), "";
    const used = Math.min(run.length, raw.length, 2);
    if (raw[used]) out.push(wait(kind, raw.slice(used)));
    out.push(put(h(kind === "~" ? "s" : used > 1 ? "strong" : "em"), inside));
    return run.slice(used);
  };
  const token = () => {
    if (is(/\\([!-/:-@[-`{-~])/y)) return m[1];
    if (is(/(?<!`)(`+)(?!`)([^]{0,2000}?[^`])\1(?!`)/y)) {
      return h("code", m[2].replaceAll("\n", " ").replace(/^ (?=.*\S)(.*) $/, "$1"));
    }
    if (is(/\n|<br ?\/?>/iy)) return h("br");
    if (is(/!?\[/y)) return wait("[", m[0]);
    if (is(/https?:\/\/[^\s<>"“”«»`[\]]*[^\s<>"“”«»`[\].,;:!?'*_~)]/iy)) return link(m[0], m);
    if (is(/&(?:#(x?\w+)|(\w+));/y)) {
      return Number(`0${m[1]}`) ? String.fromCharCode(`0${m[1]}`) : (ENTITIES[m[2]] ?? m[0]);
    }
    if (is(/<(\/?)(b|i|u|s|em|strong|su[bp]|small)(?: [^<>]*)?>/iy)) {
      const kind = m[2].toLowerCase();
      const place = m[1] ? find(kind) : -1;
      return place < 0 ? wait(m[1] + kind, m[0]) : put(h(kind), taken(place));
    }
    if (is(/\](?:\(<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?: +"[^"\n]*")?\))?/y)) {
      const place = m[1] ? find("[") : -1;
      const image = stack[place]?.raw[1] ? [icon("link"), " "] : "";
      return place < 0 || !(image || isAddress(m[1])) ? m[0] : link(m[1], [...image, ...taken(place)]);
    }
    if (!is(/\*+|_+|~~|["“”„«»]/y)) return is(/[^](?:(?!https?:)[^\\`*_~"“”„«»[\]!<&\n])*/iy)[0];
    let [run] = m;
    const [kind] = run;
    const [before, after] = [text[at - 1] ?? " ", text[at + run.length] ?? " "];
    const can = (inner, outer) =>
      /[“”„«»]/.test(kind) || (!run[3] && inner.trim() && !(/[_"]/.test(kind) && /[\p{L}\p{N}]/u.test(outer)));
    const opens = PAIRS[kind] && can(after, before);
    const closes = can(before, after);
    for (let place; closes && run && (place = find(kind)) >= 0; ) run = close(place, run);
    return run && opens ? wait(kind, run) : run;
  };

  if (open) text = text.replace(/[*_~`]{1,3}$/, "");
  for (; at < text.length; at += m[0].length) out.push(token());
  while (open && stack.length) {
    const { kind, raw } = stack.at(-1);
    if (PAIRS[kind]) close(stack.length - 1, /[*_~]/.test(kind) ? raw : "");
    else stack.pop();
  }
  return out;
}

const isAddress = (address) => /^https?:/i.test(address) && URL.canParse(address);

/** A link that shows its address. */
function link(href, content) {
  if (!isAddress(href)) return put(h("span"), content);
  const element = put(h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }), content);
  for (const inner of element.querySelectorAll("a")) inner.replaceWith(inner.textContent);
  const { host } = new URL(href);
  if (!element.textContent.includes(host)) element.append(h("small", ` (${host})`));
  return element;
}
