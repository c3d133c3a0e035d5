// How many threads to compute with, and the memory that they share.

import { SmolError } from './errors.js';
import { isNode } from './node.js';

const MOST = 64;

/** Pages of 64 KiB: more than the data and the first stack of any build. */
const INITIAL_PAGES = 64;
/** The most that memory may grow to; an engine may not have addresses for the first. */
const MAXIMUM_PAGES = [65536, 32768, 16384];

/** Whether workers may share memory here. */
function isIsolated(): boolean {
  return globalThis.crossOriginIsolated === true;
}

/** How many threads there will be, for so many `asked` for. */
export function countThreads(asked = 1): number {
  if (!Number.isInteger(asked) || asked < 1 || asked > MOST) {
    throw new SmolError('BAD_ARGUMENT', `threads: expected a whole number of 1 to ${MOST}, found ${asked}`);
  }
  if (asked > 1 && isNode) {
    throw new SmolError('BAD_ARGUMENT', `threads: expected 1 in Node, where more do not end reliably, found ${asked}`);
  }
  if (asked > 1 && !isIsolated()) {
    const reason = 'threads need a cross-origin isolated page';
    throw new SmolError('NOT_ISOLATED', `${asked} threads were asked for, and there is one: ${reason}`);
  }
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
