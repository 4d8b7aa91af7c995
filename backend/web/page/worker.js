/** Service worker: the page's own files without a network. Answers of the API are never stored. */

// The server replaces the placeholder. Each version of the page is another worker.
const VERSION = "{version}";
const CACHE = `page-${VERSION}`;
const FILES = `/page/${VERSION}/`;
const DOCUMENT = "/";

addEventListener("install", (event) => {
  skipWaiting();
  // Requests to the API do not wait until the browser has started the worker.
  const routes = event.addRoutes?.({ condition: { urlPattern: "/api/*" }, source: "network" });
  event.waitUntil(Promise.allSettled([routes, fetchAndStore(DOCUMENT)]));
});

addEventListener("activate", (event) => event.waitUntil(Promise.all([clients.claim(), dropOthers()])));

/** Delete the files of other versions. */
async function dropOthers() {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name !== CACHE).map((name) => caches.delete(name)));
}

addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  const { origin, pathname, search } = new URL(url);
  if (method !== "GET" || origin !== location.origin || search) return;
  if (pathname.startsWith(FILES)) event.respondWith(storedFirst(event.request));
  else if (pathname === DOCUMENT) event.respondWith(networkFirst(event.request));
});

async function fetchAndStore(request) {
  const response = await fetch(request);
  if (response.ok) {
    // The response does not wait for the storage, which may be full.
    const copy = response.clone();
    caches.open(CACHE).then((cache) => cache.put(request.url ?? request, copy)).catch(() => {});
  }
  return response;
}

/** Files never change at their address. */
const storedFirst = async ({ url }) => (await stored(url)) ?? fetchAndStore(url);

/** The document names the current version, so the stored one is used only without a network. */
async function networkFirst(request) {
  try {
    return await fetchAndStore(request);
  } catch (error) {
    const found = await stored(request.url);
    if (found) return found;
    throw error;
  }
}

const stored = async (url) => (await caches.open(CACHE)).match(url, { ignoreVary: true });
