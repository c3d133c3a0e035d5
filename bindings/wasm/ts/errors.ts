// What can go wrong, with a code to branch on: a message is for people.

export type ErrorCode =
  | 'ABORTED' // the caller's signal
  | 'BAD_ARGUMENT'
  | 'BAD_BLOB' // not a file that this version can run
  | 'BAD_MANIFEST'
  | 'BUG' // of smolrun; the model is of no use afterwards
  | 'CHAT_TEMPLATE' // the model has none, or it refuses these messages
  | 'CLOSED' // the model was closed
  | 'CONTEXT_FULL' // the prompt is longer than the model's context
  | 'HASH_MISMATCH' // a part is not the one that the manifest names
  | 'INSECURE_CONTEXT' // hashes can be checked on https and localhost only
  | 'NETWORK'
  | 'NO_SIMD' // no WebAssembly SIMD here
  | 'NOT_ISOLATED' // threads need a cross-origin isolated page
  | 'OUT_OF_MEMORY';

export class SmolError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    // What other interfaces that take a signal throw has this name.
    this.name = code === 'ABORTED' ? 'AbortError' : 'SmolError';
    this.code = code;
  }

  /** Any error as one of this package's. What has no code of ours is unforeseen, and so a bug. */
  static from(error: unknown): SmolError {
    if (error instanceof SmolError) return error;
    const { code, message } = error as { code?: unknown; message?: unknown };
    if (typeof code === 'string' && typeof message === 'string') return new SmolError(code as ErrorCode, message);
    if (error instanceof WebAssembly.RuntimeError && /out of memory|allocat/i.test(error.message)) {
      return new SmolError('OUT_OF_MEMORY', error.message, { cause: error });
    }
    return new SmolError('BUG', `this is a bug of smolrun: ${String(error)}`, { cause: error });
  }
}

export function aborted(): SmolError {
  return new SmolError('ABORTED', 'the operation was aborted');
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw aborted();
}
