// The page's end of the line to a worker.

import { aborted, SmolError } from './errors.js';
import { starter, type Line, type Start } from './line.js';
import type { Compiled } from './module.js';
import type { Calls, Event, Method, Piece, Request } from './protocol.js';
import type { Progress } from './types.js';

/** What may come before an answer. */
export interface Listeners {
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: Progress) => void) | undefined;
  onPiece?: (piece: Piece) => void;
}

interface Pending extends Listeners {
  method: Method;
  resolve: (value: never) => void;
  reject: (error: SmolError) => void;
}

/** From a model's being ready to its being kept. */
const PAUSE_MS = 500;

export class Connection {
  readonly #pending = new Map<number, Pending>();
  readonly #line: Line;
  /** To the workers that compute for the first. */
  readonly #threads: Line[];
  #ended: SmolError | undefined;
  #starting: { resolve: () => void; reject: (reason: SmolError) => void } | undefined;
  #isToBeKept = false;
  #kept: Promise<void> | undefined;
  #lastId = 0;

  private constructor(start: Start, threads: number) {
    // Without any one of them, the others would wait for it for ever.
    const failed = (error: SmolError) => this.end(error);
    this.#line = start('worker', (event) => this.#receive(event as Event), failed);
    this.#threads = Array.from({ length: threads - 1 }, () => start('thread', () => this.#starting?.resolve(), failed));
  }

  /** Starts the workers for so many threads. */
  static async open(threads: number): Promise<Connection> {
    return new Connection(await starter(), threads);
  }

  /**
   * Gives the workers that compute for the first what they run. Each makes its stack before the next one does, and the first
   * worker comes last: no two make the memory that they share grow at the same time.
   */
  async runThreads(compiled: Compiled): Promise<void> {
    for (const thread of this.#threads) {
      if (this.#ended) throw this.#ended;
      await new Promise<void>((resolve, reject) => {
        this.#starting = { resolve, reject };
        thread.send(compiled);
      });
    }
  }

  call<M extends Method>(
    method: M,
    args: Parameters<Calls[M]>,
    listeners: Listeners = {},
  ): Promise<ReturnType<Calls[M]>> {
    const { signal } = listeners;
    if (this.#ended) return Promise.reject(this.#ended);
    if (signal?.aborted) return Promise.reject(aborted());
    const id = ++this.#lastId;
    const abort = () => this.#line.send({ id, method: 'abort' } satisfies Request);
    signal?.addEventListener('abort', abort);
    return new Promise<ReturnType<Calls[M]>>((resolve, reject) => {
      this.#pending.set(id, { ...listeners, method, resolve, reject });
      this.#line.send({ id, method, args } satisfies Request);
    }).finally(() => signal?.removeEventListener('abort', abort));
  }

  /** Has what was loaded kept for the next visit, when a first token has had its time. */
  keepSoon(): void {
    this.#isToBeKept = true;
    setTimeout(() => void this.#keep(), PAUSE_MS);
  }

  /** Fails all that waits and all that will with `reason`, and ends the workers when what was loaded is kept. */
  async close(reason: SmolError): Promise<void> {
    const kept = this.#isToBeKept ? this.#keep() : undefined;
    for (const id of this.#pending.keys()) this.#line.send({ id, method: 'abort' } satisfies Request);
    this.#refuse(reason, 'keep');
    await kept;
    this.end(reason);
  }

  /** Ends the workers at once, and with `reason` all that waits for them and all that will. */
  end(reason: SmolError): void {
    this.#refuse(reason);
    for (const line of [this.#line, ...this.#threads]) line.end();
  }

  #keep(): Promise<void> {
    return (this.#kept ??= this.call('keep', []).catch(() => undefined)); // what is not kept is fetched again
  }

  #refuse(reason: SmolError, but?: Method): void {
    this.#ended ??= reason;
    this.#starting?.reject(reason);
    for (const [id, { method, reject }] of this.#pending) {
      if (method === but) continue;
      this.#pending.delete(id);
      reject(reason);
    }
  }

  #receive(event: Event): void {
    const pending = this.#pending.get(event.id);
    if (!pending) return;
    switch (event.type) {
      case 'progress':
        return pending.onProgress?.(event.progress);
      case 'piece':
        return pending.onPiece?.(event.piece);
      case 'result':
        this.#pending.delete(event.id);
        return pending.resolve(event.value as never);
      case 'error':
        this.#pending.delete(event.id);
        pending.reject(new SmolError(event.code, event.message));
        // A panic leaves nothing behind that could be relied on, and threads that wait for each other.
        if (event.code === 'BUG') this.end(new SmolError('BUG', event.message));
    }
  }
}
