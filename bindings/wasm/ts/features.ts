// What this engine can run: each is asked with the smallest module that needs it.

import { SmolError } from './errors.js';

/** `v128.const`-free function of type () -> v128 that uses SIMD128. */
const SIMD = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
];
/** The same with `i8x16.relaxed_swizzle`. */
const RELAXED_SIMD = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15,
  253, 128, 2, 11,
];

/** The builds of the module, by what they need. */
export type Build = 'relaxed' | 'simd';

/** The fastest build that runs here. */
export function detectBuild(): Build {
  if (WebAssembly.validate(new Uint8Array(RELAXED_SIMD))) return 'relaxed';
  if (WebAssembly.validate(new Uint8Array(SIMD))) return 'simd';
  throw new SmolError('NO_SIMD', 'this browser has no WebAssembly SIMD, which smolrun needs');
}
