// The WebAssembly module: the build that runs here. The page compiles it while its workers start.

import { aborted, SmolError } from './errors.js';
import { detectBuild, type Build } from './features.js';
import { networkError, request } from './fetch.js';
import { fileSystem, isNode } from './node.js';
import { ownMemory, type Threads } from './threads.js';
import { initSync } from './wasm/smolrun_wasm.js';

/** A module that is compiled; it can be sent to workers. */
export interface Compiled {
  readonly build: Build;
  readonly threads: number;
  readonly module: WebAssembly.Module;
  /** What the threads share, where there are several. */
  readonly memory: WebAssembly.Memory | undefined;
}

export async function compile({ count, memory }: Threads, signal?: AbortSignal): Promise<Compiled> {
  const build = detectBuild();
  const url = new URL(`./wasm/smolrun_${build}${memory ? '_threads' : ''}.wasm.gz`, import.meta.url);
  try {
    const unpacked = (await packed(url, signal)).pipeThrough(new DecompressionStream('gzip'));
    const response = new Response(unpacked, { headers: { 'content-type': 'application/wasm' } });
    const module = await WebAssembly.compileStreaming(response);
    return { build, threads: count, module, memory };
  } catch (error) {
    if (signal?.aborted) throw aborted();
    if (error instanceof SmolError) throw error;
    if (error instanceof RangeError) throw new SmolError('OUT_OF_MEMORY', error.message, { cause: error });
    throw networkError(url.href, error);
  }
}

async function packed(url: URL, signal: AbortSignal | undefined): Promise<ReadableStream<Uint8Array<ArrayBuffer>>> {
  if (isNode) return new Blob([await (await fileSystem()).readFile(url)]).stream();
  const { body } = await request(url.href, signal, 'default');
  return body ?? new Blob().stream();
}

/** Makes this worker run the module. */
export function instantiate({ module, memory = ownMemory() }: Compiled): WebAssembly.Memory {
  initSync({ module, memory });
  return memory;
}
