// The WebAssembly module: the build that runs here, compiled and started.

import { SmolError } from './errors.js';
import { detectBuild, type Build } from './features.js';
import { networkError } from './fetch.js';
import { fileSystem, isNode } from './node.js';
import { initSync } from './wasm/smolrun_wasm.js';

export interface Module {
  readonly build: Build;
  readonly memory: WebAssembly.Memory;
}

/** Starts the module, once in each worker. */
export async function start(): Promise<Module> {
  const build = detectBuild();
  const module = await compile(new URL(`./wasm/smolrun_${build}.wasm`, import.meta.url));
  return { build, memory: initSync({ module }).memory };
}

async function compile(url: URL): Promise<WebAssembly.Module> {
  try {
    if (isNode) return await WebAssembly.compile(await (await fileSystem()).readFile(url));
    return await WebAssembly.compileStreaming(fetch(url));
  } catch (error) {
    if (error instanceof RangeError) throw new SmolError('OUT_OF_MEMORY', error.message, { cause: error });
    throw networkError(url.href, error);
  }
}
