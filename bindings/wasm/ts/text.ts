// The text of a generation, as it comes.

import type { Piece } from './protocol.js';
import type { FinishReason, GenerationStats } from './types.js';

/** Runs a generation: calls `onPiece` for each token until `signal` says otherwise. */
export type Run = (onPiece: (piece: Piece) => void, signal: AbortSignal) => Promise<FinishReason>;

/**
 * Pieces of text, to be read once: `for await (const piece of generation)`. Leaving the loop stops the generation. What
 * else there is to know of it is in its properties, during and after.
 */
export class Generation implements AsyncIterable<string> {
  readonly #run: Run;
  readonly #ids: number[] = [];
  #stats: GenerationStats | undefined;
  #finishReason: FinishReason | undefined;

  constructor(run: Run) {
    this.#run = run;
  }

  /** The tokens so far. */
  get ids(): readonly number[] {
    return this.#ids;
  }

  /** What it has cost so far; none before the first token. */
  get stats(): Readonly<GenerationStats> | undefined {
    return this.#stats;
  }

  /** Why it ended, once it has. */
  get finishReason(): FinishReason | undefined {
    return this.#finishReason;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string, void, undefined> {
    const left = new AbortController();
    const texts: string[] = [];
    let wake = () => {};
    let isRunning = true;
    const run = this.#run((piece) => {
      this.#ids.push(piece.id);
      this.#stats = piece.stats;
      if (piece.text) texts.push(piece.text);
      wake();
    }, left.signal).finally(() => {
      isRunning = false;
      wake();
    });
    run.catch(() => undefined); // thrown below, unless nobody reads on
    try {
      while (isRunning || texts.length > 0) {
        // What came while the reader was busy comes as one piece.
        if (texts.length > 0) yield texts.splice(0).join('');
        else await new Promise<void>((resolve) => (wake = resolve));
      }
      this.#finishReason = await run;
    } finally {
      left.abort();
    }
  }
}
