// What a page and its worker say to each other.

import type { ErrorCode } from './errors.js';
import type { Compiled } from './module.js';
import type { FinishReason, GenerateOptions, GenerationStats, Message, ModelInfo, Progress } from './types.js';

/** Where a blob comes from, as far as it can be sent to a worker. */
export type Source = { kind: 'manifest' | 'blob'; url: string } | { kind: 'file'; file: Blob };

/** What a worker can be asked, with what it answers. */
export interface Calls {
  load(source: Source, compiled: Compiled, cache: boolean): { info: ModelInfo; isToBeKept: boolean };
  /** Keeps some of what was loaded for the next visit, while other requests run; whether there is more. */
  keep(): boolean;
  tokenize(text: string, special: boolean): Uint32Array;
  detokenize(ids: Uint32Array, skipSpecial: boolean): string;
  logits(ids: Uint32Array): Float32Array;
  generate(prompt: string | Message[], options: Omit<GenerateOptions, 'signal'>): FinishReason;
}

export type Method = keyof Calls;

/** A token, as soon as there is one. */
export interface Piece {
  id: number;
  text: string;
  stats: GenerationStats;
}

export type Request = { id: number; method: Method; args: unknown[] } | { id: number; method: 'abort' };

export type Event =
  | { id: number; type: 'progress'; progress: Progress }
  | { id: number; type: 'piece'; piece: Piece }
  | { id: number; type: 'result'; value: unknown }
  | { id: number; type: 'error'; code: ErrorCode; message: string };
