// How many threads to compute with, and the memory that they share.

import { SmolError } from './errors.js';
import { isNode, nodeVersion } from './node.js';

const MOST = 64;
/** The first version of Node that has been seen to run threads reliably, see threads.md. */
const FIRST_NODE = 22;

/** Pages of 64 KiB: more than the data and the first stack of any build. */
const INITIAL_PAGES = 64;
/** The most that memory may grow to; an engine may not have addresses for the first. */
const MAXIMUM_PAGES = [65536, 32768, 16384];

/** What there is without being asked for: more help little where memory is the limit, and the page needs processors, too. */
const USUAL = 4;

/** Why there can be only one, if so. */
function oneOnly(): SmolError | undefined {
  if (isNode) {
    if (nodeVersion() >= FIRST_NODE) return undefined;
    const reason = `threads need Node ${FIRST_NODE}, since the V8 of older ones miscompiles them`;
    return new SmolError('BAD_ARGUMENT', `threads: expected 1, ${reason}`);
  }
  if (globalThis.crossOriginIsolated === true) return undefined;
  return new SmolError('NOT_ISOLATED', 'threads: expected 1, more need a cross-origin isolated page');
}

/** How many threads there will be, for so many `asked` for, or as many as there are processors. */
export function countThreads(asked?: number): number {
  if (asked === undefined) return oneOnly() ? 1 : Math.min(navigator.hardwareConcurrency, USUAL);
  if (!Number.isInteger(asked) || asked < 1 || asked > MOST) {
    throw new SmolError('BAD_ARGUMENT', `threads: expected a whole number of 1 to ${MOST}, found ${asked}`);
  }
  const refusal = asked > 1 && oneOnly();
  if (refusal) throw refusal;
  return asked;
}

export function ownMemory(): WebAssembly.Memory {
  return new WebAssembly.Memory({ initial: INITIAL_PAGES });
}

export function sharedMemory(): WebAssembly.Memory {
  for (const maximum of MAXIMUM_PAGES) {
    try {
      return new WebAssembly.Memory({ initial: INITIAL_PAGES, maximum, shared: true });
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
    }
  }
  throw new SmolError('OUT_OF_MEMORY', 'there is no room for memory that threads can share');
}
