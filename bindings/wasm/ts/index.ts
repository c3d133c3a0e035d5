// smolrun: a small language model in the page.

import { Connection } from './connection.js';
import { SmolError, throwIfAborted } from './errors.js';
import { abortable, within } from './limit.js';
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

/** Loads that failed, until what came is kept: by their addresses. */
const failed = new Map<string, Promise<void>>();

/** Longest wait of the next load from the same address for that, to go on from there. */
const PATIENCE_MS = 5000;

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
    const from = await toSource(source);
    const connection = await Connection.open(threads.count);
    const loading = async (): Promise<ModelInfo> => {
      const compiled = await compile(threads, signal);
      await connection.runThreads(compiled);
      await keptOf(from);
      return connection.load(from, compiled, cache, { onProgress, signal });
    };
    try {
      return new Smol(connection, await abortable(signal, loading()));
    } catch (error) {
      keepOf(from, connection.close(SmolError.from(error))); // which nobody waits for: the error comes at once
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
   * was loaded is kept for the next visit, too, which takes a moment after a first one, or when the browser's storage has not
   * answered for some seconds.
   */
  close(): Promise<void> {
    return this.#connection.close(new SmolError('CLOSED', 'the model was closed'));
  }
}

/** Takes note of a load that failed, for as long as what came of it is being kept. */
function keepOf(source: Source, kept: Promise<void>): void {
  if (source.kind !== 'manifest') return;
  failed.set(source.url, kept);
  void kept.finally(() => {
    if (failed.get(source.url) === kept) failed.delete(source.url);
  });
}

/** When what came of the last load from there is kept, or has taken too long. */
async function keptOf(source: Source): Promise<void> {
  const kept = source.kind === 'manifest' ? failed.get(source.url) : undefined;
  if (kept) await within(PATIENCE_MS, kept).catch(() => undefined);
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
