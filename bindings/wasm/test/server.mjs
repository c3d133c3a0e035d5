// A server of a built page, that can be cut off, tampered with, and asked what was fetched.
import { createServer } from 'node:http';
import { createReadStream } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { extname, join, normalize } from 'node:path';

const TYPES = {
  '.css': 'text/css',
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.json': 'application/json',
  '.mjs': 'text/javascript',
  '.svg': 'image/svg+xml',
  '.wasm': 'application/wasm',
};

/** What makes a page cross-origin isolated, so that it may have threads. */
const ISOLATION = { 'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp' };

/** Serves the folder `root`, and `extra`: paths to files elsewhere. */
export async function serve(root, extra = {}, { isIsolated = false } = {}) {
  const fetched = [];
  const tampered = new Set();
  const missing = new Set();
  const reports = [];
  let isOff = false;
  let left = Infinity;

  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
    if (isOff || left <= 0) return response.destroy();
    left -= 1;
    fetched.push(path);
    if (request.method === 'POST') return receive(request, response, reports);
    if (missing.has(path)) return response.writeHead(404).end();
    const file = extra[path] ?? join(root, normalize(path.endsWith('/') ? `${path}index.html` : path));
    try {
      const { size } = await stat(file);
      response.writeHead(200, {
        'content-type': TYPES[extname(file)] ?? 'application/octet-stream',
        'content-length': size,
        ...(isIsolated ? ISOLATION : {}),
      });
      if (tampered.has(path)) response.end(flipOneBit(await readFile(file)));
      else createReadStream(file).pipe(response);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://localhost:${server.address().port}`,
    /** Paths in the order in which they were asked for. */
    fetched,
    /** Paths whose content gets a wrong bit. */
    tampered,
    /** Paths that are not found. */
    missing,
    /** What pages have posted. */
    reports,
    /** Answers nobody any more, or again. */
    cut: (off = true) => {
      isOff = off;
      if (off) server.closeAllConnections();
    },
    /** Answers so many requests more, and then nobody. */
    answerOnly: (requests) => {
      left = requests;
    },
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

async function receive(request, response, reports) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  reports.push(JSON.parse(Buffer.concat(chunks).toString()));
  response.writeHead(204).end();
}

function flipOneBit(bytes) {
  bytes[bytes.length >> 1] ^= 1;
  return bytes;
}
