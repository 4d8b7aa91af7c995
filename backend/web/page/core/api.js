/** The HTTP API: requests, problems, uploads with progress, and event streams. */
import { t } from "./words.js";

const API = "/api/v1";
const MOST_AT_THE_END = 20_000;

/** A problem that the API returned (RFC 9457), or a missing connection. */
export class Problem extends Error {
  constructor(body, status) {
    super(body.detail || body.title);
    this.body = body;
    this.status = status;
    this.slug = (body.type ?? "").split(":").at(-1);
    // Errors of a patch name the member only in the text.
    const [, message, member] = /^(.*) - at `\$\.(.+)`/.exec(body.detail) ?? [];
    /** [{member, message}] of the invalid members of a request. */
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
 * Send a request, and return its `Response` with any status. Throws a `Problem` if there is no
 * response, and `AbortError` if the signal aborted it.
 *
 * @param {string} path Below /api/v1.
 * @param {object} options `method`, `query`, `json`, `ifMatch` (a revision), `headers`, `signal`,
 *   `keepalive`: the request may outlive the page if it is short.
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
    // Browsers limit the body of requests that outlive the page.
    if (body?.length > MOST_AT_THE_END) delete rest.keepalive;
    return await fetch(address, { method, headers, body, ...rest });
  } catch (error) {
    return broken(error);
  }
}

/** Return the problem of a response. Reports an expired session to the page. */
export async function problemOf(response) {
  return refusal(await bodyOf(response), response.status);
}

function refusal(body, status) {
  const problem = new Problem(body ?? { title: t("errors.strange") }, status);
  if (problem.slug === "unauthenticated") dispatchEvent(new CustomEvent("signed-out"));
  return problem;
}

/** Return the JSON of a response, or null. Errors of the connection are thrown. */
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

  /** Return all items of a paged list. */
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
   * Send a file as the part `file` of a form, and return the JSON of the response. `onprogress`
   * receives shares from 0 to 1. `name` is sent as its own part, for files that contain no name.
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

  /** Return the address of a file or a picture. */
  url: (path) => API + path,

  /** Download a file. */
  download: (path) => Object.assign(document.createElement("a"), { href: API + path, download: "" }).click(),
};

/**
 * Yield the server-sent events of a response: `{ id, event, data }` with parsed data. `heard` is
 * called for every part of the response, including signs of life.
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
