// Keeps the page itself for the next visit, so that it needs no network. (The models' parts keep themselves.)
//
// scripts/build_web.sh writes the version, a hash of all files, and their names: one version is installed as a whole, and
// never mixed with another. A new one waits until no page of the old one is open.
const VERSION = 'development';
const FILES = [];
const PREFIX = 'smolrun-page-';
/** What makes the page cross-origin isolated from its second visit on, so that it may have threads wherever it is served from. */
const ISOLATION = { 'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp' };

/** Longest wait for the browser's storage: nothing in it is worth a page that hangs. */
const PATIENCE_MS = 5000;
/** Whether it has not answered once: it is not asked again while this runs. */
let isSilent = false;

self.addEventListener('install', (event) => event.waitUntil(install()));
// The page's requests wait until this is done.
self.addEventListener('activate', (event) => event.waitUntil(within(activate()).catch(() => undefined)));
self.addEventListener('fetch', (event) => {
  if (event.request.method === 'GET') event.respondWith(answer(event.request));
});

async function install() {
  const cache = await caches.open(PREFIX + VERSION);
  await Promise.all(FILES.map((file) => keep(cache, file)));
}

async function keep(cache, file) {
  const response = await fetch(file, { cache: 'no-cache' });
  if (!response.ok) throw new Error(`${file}: the server answered ${response.status}`);
  const headers = new Headers(response.headers);
  headers.delete('content-encoding'); // what is kept is unpacked
  headers.delete('content-length');
  for (const [name, value] of Object.entries(ISOLATION)) headers.set(name, value);
  await cache.put(file, new Response(response.body, { headers }));
}

async function activate() {
  const names = await caches.keys();
  const old = names.filter((name) => name.startsWith(PREFIX) && name !== PREFIX + VERSION);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

async function answer(request) {
  return (await kept(request)) ?? fetch(request);
}

/** What is kept for a request, if the storage says so in time. */
async function kept(request) {
  if (isSilent) return undefined;
  try {
    return await within(match(request));
  } catch {
    isSilent = true;
    return undefined;
  }
}

async function match(request) {
  const cache = await caches.open(PREFIX + VERSION);
  return cache.match(request, { ignoreSearch: true });
}

/** What `work` gives, or an error after a while. */
async function within(work) {
  let timer;
  let left = 10; // pieces, since in a machine that slept nobody could have answered
  const over = new Promise((_, reject) => {
    timer = setInterval(() => {
      left -= 1;
      if (left === 0) reject(new Error(`no answer within ${PATIENCE_MS} ms`));
    }, PATIENCE_MS / 10);
  });
  try {
    return await Promise.race([work, over]);
  } finally {
    clearInterval(timer);
  }
}
