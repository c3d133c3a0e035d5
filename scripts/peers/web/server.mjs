// A server on localhost for all peers alike: isolated pages, cacheable files, texts and modules gzipped, every byte counted.
import { createReadStream } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';

const TYPES = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.json': 'application/json',
  '.mjs': 'text/javascript',
  '.wasm': 'application/wasm',
};

/** Serves `places`: what paths begin with, to files or folders; the longest that fits counts. */
export async function serve(places) {
  const prefixes = Object.keys(places).sort((a, b) => b.length - a.length);
  const gzipped = new Map();
  let sent = 0;

  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
    const prefix = prefixes.find((prefix) => path.startsWith(prefix));
    const file = prefix && join(places[prefix], normalize(path.slice(prefix.length)));
    const size = file && (await stat(file).then((found) => found.isFile() && found.size, () => undefined));
    if (!size) return response.writeHead(404).end();
    const headers = {
      'cache-control': 'max-age=86400',
      'content-type': TYPES[extname(file)] ?? 'application/octet-stream',
      'cross-origin-embedder-policy': 'require-corp',
      'cross-origin-opener-policy': 'same-origin',
    };
    if (TYPES[extname(file)] && request.headers['accept-encoding']?.includes('gzip')) {
      if (!gzipped.has(file)) gzipped.set(file, promisify(gzip)(await readFile(file), { level: 9 }));
      const body = await gzipped.get(file);
      response.writeHead(200, { ...headers, 'content-encoding': 'gzip', 'content-length': body.length });
      if (request.method === 'HEAD') return response.end();
      sent += body.length;
      return response.end(body);
    }
    response.writeHead(200, { ...headers, 'content-length': size });
    if (request.method === 'HEAD') return response.end();
    sent += size;
    createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://localhost:${server.address().port}`,
    /** Bytes of bodies since the last call. */
    takeSent: () => [sent, (sent = 0)][0],
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}
