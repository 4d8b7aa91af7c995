/** Client of the HTTP API: requests, problems, uploads with progress, and server-sent events. */
import { t } from "./words.js";

const API = "/api/v1";
const MOST_AT_THE_END = 20_000;

/** A problem response of the API (RFC 9457), or a failed connection. */
export class Problem extends Error {
  constructor(body, status) {
    super(body.detail || body.title);
    this.body = body;
    this.status = status;
    this.slug = (body.type ?? "").split(":").at(-1);
    // The errors of a merge patch name their member only in the text.
    const [, message, member] = /^(.*) - at `\$\.(.+)`/.exec(body.detail) ?? [];
    /** The refused members of the request: [{member, message}]. */
    this.faults = body.errors ?? (member ? [{ member, message }] : []);
  }

  get isOffline() {
    return this.slug === "offline";
  }
}

const offline = () => {
  dispatchEvent(new Event("unreachable"));
  return new Problem({ type: "offline", title: t("errors.offline") }, 0);
};

function broken(error) {
  throw error.name === "AbortError" ? error : offline();
}

const csrf = () => document.cookie.match(/(?:^|; )csrftoken=([^;]*)/)?.[1] ?? "";

/**
 * Send a request and return its `Response` with any status.
 * Throws a `Problem` if there is no response, and `AbortError` if the signal aborted the request.
 *
 * @param {string} path Below /api/v1.
 * @param {object} options `method`, `query`, `json`, `ifMatch` (a revision), `headers`, `signal`,
 *   `keepalive` (a small request may outlive the page).
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
    // Browsers limit the size of requests that outlive the page.
    if (body?.length > MOST_AT_THE_END) delete rest.keepalive;
    return await fetch(address, { method, headers, body, ...rest });
  } catch (error) {
    return broken(error);
  }
}

/** Return the problem of a response. Notifies the page if the session has ended. */
export async function problemOf(response) {
  return refusal(await bodyOf(response), response.status);
}

function refusal(body, status) {
  const problem = new Problem(body ?? { title: t("errors.strange") }, status);
  if (problem.slug === "unauthenticated") dispatchEvent(new CustomEvent("signed-out"));
  return problem;
}

/** Return the JSON of a response, or null. Rethrows if the request was aborted. */
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
  get: ask,
  post: asking("POST"),
  patch: asking("PATCH"),
  put: asking("PUT"),
  delete: asking("DELETE"),

  /** Return the items of all pages of a list. `each(item)` is called as soon as a page arrives. */
  async all(path, { query, signal, each } = {}) {
    const items = [];
    let after;
    do {
      const page = await ask(path, { query: { limit: 500, ...query, after }, signal });
      items.push(...page.items);
      if (each) page.items.forEach(each);
      after = page.next;
    } while (after);
    return items;
  },

  /**
   * Upload a file as the part `file` of a form, and return the JSON of the response.
   * `onprogress` receives shares from 0 to 1. `name` is sent as a part of its own, for files that
   * do not contain their name.
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

  url: (path) => API + path,
};

/**
 * Send a request for each item at once, so that all of them go on when the page is closed.
 * Returns their results. Throws the first error, after the responses to the others.
 */
export async function sendAll(items, request) {
  const results = await Promise.allSettled(items.map(request));
  const failed = results.find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
  return results.map(({ value }) => value);
}

/**
 * Yield the server-sent events of a response as `{ id, event, data }` with parsed data.
 * `heard` is called for every line, including heartbeats.
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
