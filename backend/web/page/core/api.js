/** The HTTP API: requests, problems, uploads with progress, events that stream in. */
import { t } from "./words.js";

const API = "/api/v1";
const MOST_AT_THE_END = 20_000;

/** What the API answered when it did not do what was asked (RFC 9457), or that nobody answered. */
export class Problem extends Error {
  constructor(body, status) {
    super(body.detail || body.title);
    this.body = body;
    this.status = status;
    this.slug = (body.type ?? "").split(":").at(-1);
    // What is wrong with a patch is told in the text alone.
    const [, message, member] = /^(.*) - at `\$\.(.+)`/.exec(body.detail) ?? [];
    /** [{member, message}] where members of a request were refused. */
    this.faults = body.errors ?? (member ? [{ member, message }] : []);
  }

  get isOffline() {
    return this.slug === "offline";
  }
}

const offline = () => new Problem({ type: "offline", title: t("errors.offline") }, 0);

function broken(error) {
  throw error.name === "AbortError" ? error : offline();
}

const csrf = () => document.cookie.match(/(?:^|; )csrftoken=([^;]*)/)?.[1] ?? "";

/**
 * Send a request; its `Response`, whatever it says. Throws a `Problem` where none comes, and
 * `AbortError` where the signal ended it.
 *
 * @param {string} path Below /api/v1.
 * @param {object} options `method`, `query`, `json`, `ifMatch` (a revision), `headers`,
 *   `signal`, `keepalive`: it may outlive the page, if it is not too long.
 */
export async function send(path, options = {}) {
  const { method = "GET", query, json, ifMatch, headers = {}, ...rest } = options;
  const given = Object.entries(query ?? {}).filter(([, value]) => value != null && value !== "");
  const address = API + path + (given.length ? `?${new URLSearchParams(given)}` : "");
  if (json !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["x-csrftoken"] = csrf();
  if (ifMatch != null) headers["If-Match"] = `"${ifMatch}"`;
  try {
    const body = JSON.stringify(json);
    // A page on its way out may send only so much.
    if (body?.length > MOST_AT_THE_END) delete rest.keepalive;
    return await fetch(address, { method, headers, body, ...rest });
  } catch (error) {
    return broken(error);
  }
}

/** The problem that an answer tells. Tells the page where nobody is signed in any more. */
export async function problemOf(response) {
  return refusal(await bodyOf(response), response.status);
}

function refusal(body, status) {
  const problem = new Problem(body ?? { title: t("errors.strange") }, status);
  if (problem.slug === "unauthenticated") dispatchEvent(new CustomEvent("signed-out"));
  return problem;
}

/** The JSON of an answer, or null; being given up is told. */
const bodyOf = (response) =>
  response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });

async function ask(path, options) {
  const response = await send(path, options);
  if (!response.ok) throw await problemOf(response);
  return bodyOf(response);
}

const asking = (method) => (path, json, options) => ask(path, { method, json, ...options });

export const api = {
  /** `api.get("/chats", { query: { limit: 50 }, signal })` */
  get: ask,
  /** `api.post("/chats", { title })` */
  post: asking("POST"),
  patch: asking("PATCH"),
  put: asking("PUT"),
  delete: asking("DELETE"),

  /** Every item of a list that comes in pages. */
  async all(path, { query, signal } = {}) {
    const items = [];
    let after;
    do {
      const page = await ask(path, { query: { limit: 500, ...query, after }, signal });
      items.push(...page.items);
      after = page.next;
    } while (after);
    return items;
  },

  /**
   * Send a file as the part `file` of a form; the answer's JSON. `onprogress` hears shares from 0
   * to 1; `name` is a part of its own, for files that do not say their name themselves.
   */
  upload(path, file, { method = "POST", name, onprogress, signal } = {}) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open(method, API + path);
      request.setRequestHeader("x-csrftoken", csrf());
      request.responseType = "json";
      request.upload.onprogress = (event) => onprogress?.(event.loaded / event.total);
      request.onerror = () => reject(offline());
      request.onabort = () => reject(signal.reason);
      request.onload = () => {
        if (request.status < 300) resolve(request.response);
        else reject(refusal(request.response, request.status));
      };
      signal?.addEventListener("abort", () => request.abort(), { once: true });
      const form = new FormData();
      if (name) form.append("name", name);
      form.append("file", file);
      request.send(form);
    });
  },

  /** The address of a file or a picture. */
  url: (path) => API + path,

  /** Have the browser save a file. */
  download: (path) => Object.assign(document.createElement("a"), { href: API + path, download: "" }).click(),
};

/**
 * The server-sent events of an answer: `{ id, event, data }`, data parsed. Ends when it ends.
 * `heard` is called whenever anything comes, and be it a sign of life.
 */
export async function* events(response, heard) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(broken);
      if (done) return;
      heard?.();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const fields = { event: "message", data: "" };
        for (const line of block.split("\n")) {
          const [, name, text] = /^(\w+): ?(.*)$/.exec(line) ?? [];
          if (name) fields[name] = text;
        }
        if (fields.data) yield { ...fields, data: JSON.parse(fields.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
