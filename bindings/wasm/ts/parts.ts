// A blob in parts: each is checked when it has arrived, put in its place, and kept for the next visit.

import { SmolError, throwIfAborted } from './errors.js';
import { fetchBytes, fetchText, stream } from './fetch.js';
import { sha256 } from './hash.js';
import type { Keeper } from './keeper.js';
import { parseManifest, type Manifest, type Part } from './manifest.js';
import type { Store } from './store.js';
import type { Place, Target } from './target.js';
import type { Progress } from './types.js';

/** Parts on their way at a time: what hides the network's latency, and all that is in memory beside the blob. */
const AT_A_TIME = 3;

/** Where parts are kept, and who keeps them there when there is time. */
export interface Kept {
  readonly store: Store;
  readonly keeper: Keeper;
}

interface Load {
  base: string;
  kept: Kept | undefined;
  target: Target;
  signal: AbortSignal;
  tally: Tally;
}

/** Reads the manifest at `url`. Who has one of an earlier visit takes that when the network fails, and does not try again. */
export async function loadManifest(url: string, store: Store | undefined, signal: AbortSignal): Promise<Manifest> {
  const kept = await store?.readManifest(url);
  let text: string;
  try {
    text = await fetchText(url, signal, kept === undefined ? undefined : 1);
  } catch (error) {
    if (kept === undefined || !(error instanceof SmolError) || error.code !== 'NETWORK') throw error;
    return parseManifest(kept);
  }
  const manifest = parseManifest(text);
  if (text !== kept) store?.keepManifest(url, text);
  return manifest;
}

/** Fills `target` with the blob that the manifest at `base` describes. What comes is left to be kept, also where some does not. */
export async function loadParts(
  manifest: Manifest,
  base: string,
  kept: Kept | undefined,
  target: Target,
  signal: AbortSignal,
  onProgress: (progress: Progress) => void,
): Promise<void> {
  const load = { base, kept, target, signal, tally: new Tally(manifest.bytes, onProgress) };
  const queue = places(manifest.files);
  const work = async () => {
    for (let next = queue.shift(); next; next = queue.shift()) {
      try {
        await loadPart(next.part, next.place, load);
      } catch (error) {
        queue.length = 0; // the others have nothing more to do
        throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, work));
  if (load.tally.isFetched) kept?.keeper.add(() => kept.store.sweep());
  load.tally.report(true);
}

async function loadPart(part: Part, place: Place, load: Load): Promise<void> {
  const { kept, target, signal, tally } = load;
  const view = () => target.view(place);
  throwIfAborted(signal);
  if (await kept?.store.readPart(part.sha256, view)) {
    tally.add(part.blobBytes, true);
    return;
  }
  const url = new URL(part.path, load.base).href;
  const scale = part.blobBytes / part.bytes;
  const body = await fetchBytes(url, part.bytes, signal, (bytes) => tally.add(bytes * scale, false));
  await check(part, body);
  await unpack(part, body, place, target);
  kept?.keeper.add(() => kept.store.writePart(part.sha256, view));
}

async function check(part: Part, body: Uint8Array<ArrayBuffer>): Promise<void> {
  const found = await sha256(body);
  if (found !== part.sha256) {
    throw new SmolError('HASH_MISMATCH', `${part.path}: expected SHA-256 ${part.sha256}, found ${found}`);
  }
}

async function unpack(part: Part, body: Uint8Array<ArrayBuffer>, place: Place, target: Target): Promise<void> {
  if (part.encoding === 'identity') return target.write(place, 0, body);
  const unpacked = new Blob([body]).stream().pipeThrough(new DecompressionStream('gzip'));
  let length = 0;
  for await (const chunk of stream({ body: unpacked })) {
    target.write(place, length, chunk);
    length += chunk.length;
  }
  if (length !== place.length) {
    throw new SmolError('BAD_MANIFEST', `${part.path} unpacks to ${length} bytes, not ${place.length}`);
  }
}

function places(parts: readonly Part[]): { part: Part; place: Place }[] {
  let start = 0;
  return parts.map((part) => {
    const place = { start, length: part.blobBytes };
    start += part.blobBytes;
    return { part, place };
  });
}

/** Counts bytes, and tells of them now and then. */
export class Tally {
  static readonly #PAUSE_MS = 50;
  #loaded = 0;
  #cached = 0;
  #reported = -Infinity;

  constructor(
    readonly total: number,
    readonly onProgress: (progress: Progress) => void,
  ) {}

  /** Whether some of it was not there yet. */
  get isFetched(): boolean {
    return this.#loaded > this.#cached;
  }

  add(bytes: number, fromCache: boolean): void {
    this.#loaded += bytes;
    if (fromCache) this.#cached += bytes;
    this.report(false);
  }

  report(always: boolean): void {
    const now = performance.now();
    if (!always && now - this.#reported < Tally.#PAUSE_MS) return;
    this.#reported = now;
    this.onProgress({ loaded: Math.round(this.#loaded), total: this.total, cached: this.#cached });
  }
}
