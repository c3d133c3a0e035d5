// How many threads to compute with, and the memory that they share.

import { SmolError, type ErrorCode } from './errors.js';
import { isNode, nodeVersion } from './node.js';

/** What there is without being asked for: more help little where memory is the limit, and the page needs processors, too. */
const USUAL = 4;
const MOST = 64;
/** The first version of Node that has been seen to run threads reliably, see threads.md. */
const FIRST_NODE = 22;

/** Pages of 64 KiB: more than the data and the first stack of any build. */
const INITIAL_PAGES = 64;
/** The most that memory may grow to; an engine may not have addresses for the first. */
const MAXIMUM_PAGES = [65536, 32768, 16384];

export interface Threads {
  readonly count: number;
  /** What they share, where there are several. */
  readonly memory: WebAssembly.Memory | undefined;
}

const ONE: Threads = { count: 1, memory: undefined };

/** As many as are `asked` for; otherwise as many as there can be, within reason. */
export function chooseThreads(asked?: number): Threads {
  if (asked === undefined) return usualThreads();
  if (!Number.isInteger(asked) || asked < 1 || asked > MOST) {
    throw new SmolError('BAD_ARGUMENT', `threads: expected a whole number of 1 to ${MOST}, found ${asked}`);
  }
  if (asked === 1) return ONE;
  const obstacle = findObstacle();
  if (obstacle) throw new SmolError(obstacle.code, `threads: expected 1, since ${obstacle.reason}, found ${asked}`);
  const memory = sharedMemory();
  if (!memory) throw new SmolError('OUT_OF_MEMORY', 'there is no room for memory that threads can share');
  return { count: asked, memory };
}

function usualThreads(): Threads {
  if (findObstacle()) return ONE; // where there may be no navigator to ask, either
  const count = Math.min(navigator.hardwareConcurrency, USUAL);
  const memory = count > 1 ? sharedMemory() : undefined;
  return memory ? { count, memory } : ONE;
}

/** Why there can be only one, if so. */
function findObstacle(): { code: ErrorCode; reason: string } | undefined {
  if (isNode) {
    const reason = `Node before ${FIRST_NODE} miscompiles threads`;
    return nodeVersion() < FIRST_NODE ? { code: 'BAD_ARGUMENT', reason } : undefined;
  }
  const reason = 'more need a cross-origin isolated page';
  return globalThis.crossOriginIsolated === true ? undefined : { code: 'NOT_ISOLATED', reason };
}

export function ownMemory(): WebAssembly.Memory {
  return new WebAssembly.Memory({ initial: INITIAL_PAGES });
}

function sharedMemory(): WebAssembly.Memory | undefined {
  for (const maximum of MAXIMUM_PAGES) {
    try {
      return new WebAssembly.Memory({ initial: INITIAL_PAGES, maximum, shared: true });
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
    }
  }
  return undefined;
}
