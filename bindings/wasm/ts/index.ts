// smolrun: a small language model in the page.

import { Connection } from './connection.js';
import { SmolError, throwIfAborted } from './errors.js';
import { compile } from './module.js';
import { isNode, paths } from './node.js';
import type { Source } from './protocol.js';
import { Generation } from './text.js';
import { chooseThreads } from './threads.js';
import type { GenerateOptions, LoadOptions, Message, ModelInfo } from './types.js';

export { SmolError, type ErrorCode } from './errors.js';
export { Generation } from './text.js';
export type {
  FinishReason,
  GenerateOptions,
  GenerationStats,
  LoadOptions,
  Message,
  ModelInfo,
  Progress,
} from './types.js';

/** A model in workers of its own. */
export class Smol {
  readonly #connection: Connection;
  /** What the model is. */
  readonly info: ModelInfo;

  private constructor(connection: Connection, info: ModelInfo) {
    this.#connection = connection;
    this.info = info;
  }

  /**
   * Loads a model: from the address of a blob or, where it ends in `.json`, of a manifest with the blob's parts, from a
   * file that the user chose, or from bytes. In Node an address may be a path.
   */
  static async load(source: string | URL | Blob | ArrayBuffer | Uint8Array, options: LoadOptions = {}): Promise<Smol> {
    const { onProgress, signal, cache = true } = options;
    const threads = chooseThreads(options.threads);
    throwIfAborted(signal);
    const connection = await Connection.open(threads.count);
    try {
      const compiled = await compile(threads, signal);
      await connection.runThreads(compiled);
      const asked = [await toSource(source), compiled, cache] as const;
      const { info, isToBeKept } = await connection.call('load', [...asked], { onProgress, signal });
      if (isToBeKept) connection.keepSoon();
      return new Smol(connection, info);
    } catch (error) {
      connection.end(SmolError.from(error));
      throw error;
    }
  }

  /**
   * What comes after a text, or the answer to a conversation. Nothing runs before the first piece is asked for; while
   * another generation runs, it waits. Of a conversation's beginning that the model still has in its memory, nothing
   * runs again.
   */
  generate(prompt: string | readonly Message[], options: GenerateOptions = {}): Generation {
    const { signal, ...rest } = options;
    const asked = typeof prompt === 'string' ? prompt : prompt.map(({ role, content }) => ({ role, content }));
    return new Generation((onPiece, left) => {
      const either = signal ? AbortSignal.any([signal, left]) : left;
      return this.#connection.call('generate', [asked, rest], { signal: either, onPiece });
    });
  }

  /** The tokens of a text. Control tokens that it spells are text, unless `special` says otherwise. */
  tokenize(text: string, options: { special?: boolean } = {}): Promise<Uint32Array> {
    return this.#connection.call('tokenize', [text, options.special ?? false]);
  }

  /** The text of tokens, without the control tokens among them unless `skipSpecial` says otherwise. */
  detokenize(ids: ArrayLike<number>, options: { skipSpecial?: boolean } = {}): Promise<string> {
    return this.#connection.call('detokenize', [Uint32Array.from(ids), options.skipSpecial ?? true]);
  }

  /** The logits after `ids`, one for each token of the vocabulary. */
  logits(ids: ArrayLike<number>): Promise<Float32Array> {
    return this.#connection.call('logits', [Uint32Array.from(ids)]);
  }

  /**
   * Ends the workers and gives their memory back. What still waits for them fails with the code `CLOSED`. Done when all that
   * was loaded is kept for the next visit, too, which takes a moment after a first one.
   */
  close(): Promise<void> {
    return this.#connection.close(new SmolError('CLOSED', 'the model was closed'));
  }
}

async function toSource(source: string | URL | Blob | ArrayBuffer | Uint8Array): Promise<Source> {
  if (source instanceof Blob) return { kind: 'file', file: source };
  if (source instanceof ArrayBuffer || source instanceof Uint8Array) {
    return { kind: 'file', file: new Blob([source as BlobPart]) };
  }
  const url = await toUrl(source);
  return { kind: url.pathname.endsWith('.json') ? 'manifest' : 'blob', url: url.href };
}

async function toUrl(source: string | URL): Promise<URL> {
  if (source instanceof URL) return source;
  if (!isNode) return new URL(source, globalThis.document?.baseURI ?? location.href);
  return /^[a-z]+:\/\//i.test(source) ? new URL(source) : (await paths()).pathToFileURL(source);
}
