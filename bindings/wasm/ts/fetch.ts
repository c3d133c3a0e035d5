// Bytes from the network or, in Node, from files; every failure names what was asked for.

import { aborted, SmolError } from './errors.js';
import { fileSystem } from './node.js';

/** Times that a request is made before the network is given up on, and the pause before the next, doubled each time. */
const ATTEMPTS = 3;
const PAUSE_MS = 300;

/** Reads a whole text; where the network fails, so many times. */
export async function fetchText(url: string, signal: AbortSignal, attempts = ATTEMPTS): Promise<string> {
  if (isFile(url)) return new TextDecoder().decode(await readFile(url));
  // The server is asked whether there is a newer one.
  return attempt(url, signal, async () => (await request(url, signal, 'no-cache')).text(), attempts);
}

/** Reads a body whose length is known, telling `received` how many bytes more there are. */
export async function fetchBytes(
  url: string,
  bytes: number,
  signal: AbortSignal,
  received: (bytes: number) => void,
): Promise<Uint8Array<ArrayBuffer>> {
  if (isFile(url)) {
    const body = await readFile(url);
    received(body.length);
    return body;
  }
  return attempt(url, signal, async () => {
    const body = new Uint8Array(bytes);
    let length = 0;
    try {
      for await (const chunk of stream(await request(url, signal, 'default'))) {
        if (length + chunk.length > bytes) throw new SmolError('HASH_MISMATCH', `${url} is longer than ${bytes} bytes`);
        body.set(chunk, length);
        length += chunk.length;
        received(chunk.length);
      }
      if (length < bytes) throw new TypeError(`it ended after ${length} of ${bytes} bytes`);
      return body;
    } catch (error) {
      received(-length);
      throw error;
    }
  });
}

export async function request(url: string, signal: AbortSignal | undefined, cache: RequestCache): Promise<Response> {
  const response = await fetch(url, { signal: signal ?? null, cache });
  if (!response.ok) throw new TypeError(`the server answered ${response.status} ${response.statusText}`);
  return response;
}

/** The body's pieces. (Not every browser can iterate over a stream by itself.) */
export async function* stream(from: { body: ReadableStream<Uint8Array> | null }): AsyncGenerator<Uint8Array> {
  const reader = from.body?.getReader();
  if (!reader) return;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } finally {
    await reader.cancel().catch(() => undefined); // does nothing at the end
  }
}

/** Whether only Node can read it. */
export function isFile(url: string): boolean {
  return url.startsWith('file:');
}

export function networkError(url: string, error: unknown): SmolError {
  const reason = error instanceof Error ? error.message : String(error);
  return new SmolError('NETWORK', `${url}: ${reason}`, { cause: error });
}

async function readFile(url: string): Promise<Uint8Array<ArrayBuffer>> {
  try {
    return await (await fileSystem()).readFile(new URL(url));
  } catch (error) {
    throw networkError(url, error);
  }
}

async function attempt<T>(
  url: string,
  signal: AbortSignal,
  work: () => Promise<T>,
  attempts = ATTEMPTS,
): Promise<T> {
  for (let made = 1; ; made += 1) {
    try {
      return await work();
    } catch (error) {
      if (signal.aborted) throw aborted();
      if (error instanceof SmolError) throw error;
      if (made === attempts) throw networkError(url, error);
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * 2 ** (made - 1)));
    }
  }
}
