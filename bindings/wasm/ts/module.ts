// The WebAssembly module: the build that runs here. The page compiles it while its worker starts.

import { SmolError } from './errors.js';
import { detectBuild, type Build } from './features.js';
import { networkError } from './fetch.js';
import { fileSystem, isNode } from './node.js';

/** A module that is compiled; it can be sent to a worker. */
export interface Compiled {
  readonly build: Build;
  readonly module: WebAssembly.Module;
}

export async function compile(): Promise<Compiled> {
  const build = detectBuild();
  const url = new URL(`./wasm/smolrun_${build}.wasm`, import.meta.url);
  try {
    const module = isNode
      ? await WebAssembly.compile(await (await fileSystem()).readFile(url))
      : await WebAssembly.compileStreaming(fetch(url));
    return { build, module };
  } catch (error) {
    if (error instanceof RangeError) throw new SmolError('OUT_OF_MEMORY', error.message, { cause: error });
    throw networkError(url.href, error);
  }
}
