// From a source to an engine.

import { SmolError } from './errors.js';
import { isFile, networkError, request, stream } from './fetch.js';
import type { Keeper } from './keeper.js';
import type { Manifest } from './manifest.js';
import { instantiate, type Compiled } from './module.js';
import { fileSystem } from './node.js';
import { loadManifest, loadParts, Tally } from './parts.js';
import type { Source } from './protocol.js';
import { Store } from './store.js';
import { Target } from './target.js';
import type { ModelInfo, Progress } from './types.js';
import { BlobBuffer, Engine } from './wasm/smolrun_wasm.js';

/** A model that is ready. */
export interface Loaded {
  readonly engine: Engine;
  readonly memory: WebAssembly.Memory;
  readonly info: ModelInfo;
}

type Report = (progress: Progress) => void;

/** A module that runs. */
interface Module {
  readonly build: Compiled['build'];
  readonly threads: number;
  readonly memory: WebAssembly.Memory;
}

/** Loads a model, and leaves what the next visit may need to `keeper`, if there is one. */
export async function load(
  source: Source,
  compiled: Compiled,
  keeper: Keeper | undefined,
  signal: AbortSignal,
  report: Report,
): Promise<Loaded> {
  const module = { build: compiled.build, threads: compiled.threads, memory: instantiate(compiled) };
  switch (source.kind) {
    case 'manifest':
      return loadFromManifest(source.url, keeper, module, signal, report);
    case 'blob':
      return loadFromUrl(source.url, module, signal, report);
    case 'file':
      return loadFromStream(source.file.stream(), source.file.size, module, report);
  }
}

async function loadFromManifest(
  url: string,
  keeper: Keeper | undefined,
  module: Module,
  signal: AbortSignal,
  report: Report,
): Promise<Loaded> {
  const store = keeper && (await Store.open());
  const manifest = await loadManifest(url, store, signal);
  const kept = store && { store, keeper };
  return fill(manifest.bytes, module, manifest, (target) => loadParts(manifest, url, kept, target, signal, report));
}

async function loadFromUrl(url: string, module: Module, signal: AbortSignal, report: Report): Promise<Loaded> {
  if (isFile(url)) return loadFromFile(url, module, report);
  let response: Response;
  try {
    response = await request(url, signal, 'default');
  } catch (error) {
    throw networkError(url, error);
  }
  const length = Number(response.headers.get('content-length'));
  // A length is the body's only if nothing unpacks it on the way. Without one the body has to be taken as a whole first.
  if (length > 0 && !response.headers.has('content-encoding') && response.body) {
    return loadFromStream(response.body, length, module, report);
  }
  const body = await response.blob();
  return loadFromStream(body.stream(), body.size, module, report);
}

async function loadFromStream(
  body: ReadableStream<Uint8Array>,
  length: number,
  module: Module,
  report: Report,
): Promise<Loaded> {
  return fill(length, module, undefined, async (target) => {
    const tally = new Tally(length, report);
    let offset = 0;
    for await (const chunk of stream({ body })) {
      target.write({ start: 0, length }, offset, chunk);
      offset += chunk.length;
      tally.add(chunk.length, false);
    }
    if (offset < length) throw new SmolError('NETWORK', `the blob ended after ${offset} of ${length} bytes`);
    tally.report(true);
  });
}

/** In Node: reads a file into place, which no stream can. */
async function loadFromFile(url: string, module: Module, report: Report): Promise<Loaded> {
  const file = await (await fileSystem()).open(new URL(url)).catch((error: unknown) => {
    throw networkError(url, error);
  });
  try {
    const length = (await file.stat()).size;
    return await fill(length, module, undefined, async (target) => {
      const into = target.view({ start: 0, length });
      for (let offset = 0; offset < length; ) {
        const { bytesRead } = await file.read(into, offset, length - offset, offset);
        if (bytesRead === 0) throw new SmolError('NETWORK', `${url} became shorter while it was read`);
        offset += bytesRead;
      }
      report({ loaded: length, total: length, cached: length });
    });
  } finally {
    await file.close();
  }
}

/** Makes room for a blob, has it filled, and makes an engine of it. */
async function fill(
  length: number,
  { build, threads, memory }: Module,
  manifest: Manifest | undefined,
  work: (target: Target) => Promise<void>,
): Promise<Loaded> {
  const target = new Target(new BlobBuffer(length), memory, length);
  await work(target);
  const engine = target.become((buffer) => new Engine(buffer, threads));
  const { name, version, architecture, licence } = manifest ?? {};
  const info = { name, version, architecture, licence, build, ...(engine.info() as object) } as ModelInfo;
  return { engine, memory, info };
}
