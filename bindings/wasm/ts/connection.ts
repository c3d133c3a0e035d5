// The page's end of the line to a worker.

import { aborted, SmolError } from './errors.js';
import { within } from './limit.js';
import { starter, type Line, type Start } from './line.js';
import type { Compiled } from './module.js';
import type { Calls, Event, Method, Piece, Request, Source } from './protocol.js';
import type { ModelInfo, Progress } from './types.js';

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

/** Longest wait for a worker that keeps something: several times as long as the worker itself waits for the browser. */
const KEEPING_MS = 20_000;

export class Connection {
  readonly #pending = new Map<number, Pending>();
  readonly #line: Line;
  /** To the workers that compute for the first. */
  readonly #threads: Line[];
  #ended: SmolError | undefined;
  #starting: { resolve: () => void; reject: (reason: SmolError) => void } | undefined;
  #isToBeKept = false;
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

  /** Loads a model, and has what came kept for the next visit: when a first token has had its time, or at the end. */
  async load(source: Source, compiled: Compiled, cache: boolean, listeners: Listeners): Promise<ModelInfo> {
    if (this.#ended) throw this.#ended;
    this.#isToBeKept = cache && source.kind === 'manifest'; // also of a load that fails
    const { info, isToBeKept } = await this.call('load', [source, compiled, cache], listeners);
    this.#isToBeKept = isToBeKept;
    if (isToBeKept) setTimeout(() => void this.#keep(), PAUSE_MS);
    return info;
  }

  call<M extends Method>(
    method: M,
    args: Parameters<Calls[M]>,
    listeners: Listeners = {},
  ): Promise<ReturnType<Calls[M]>> {
    if (this.#ended) return Promise.reject(this.#ended);
    if (listeners.signal?.aborted) return Promise.reject(aborted());
    return this.#ask(method, args, listeners);
  }

  #ask<M extends Method>(
    method: M,
    args: Parameters<Calls[M]>,
    listeners: Listeners = {},
  ): Promise<ReturnType<Calls[M]>> {
    const { signal } = listeners;
    const id = ++this.#lastId;
    const abort = () => this.#line.send({ id, method: 'abort' } satisfies Request);
    signal?.addEventListener('abort', abort);
    return new Promise<ReturnType<Calls[M]>>((resolve, reject) => {
      this.#pending.set(id, { ...listeners, method, resolve, reject });
      this.#line.send({ id, method, args } satisfies Request);
    }).finally(() => signal?.removeEventListener('abort', abort));
  }

  /** Fails all that waits and all that will with `reason`, and ends the workers when what was loaded is kept. */
  async close(reason: SmolError): Promise<void> {
    for (const [id, { method }] of this.#pending) {
      if (method !== 'keep') this.#line.send({ id, method: 'abort' } satisfies Request);
    }
    this.#refuse(reason, 'keep');
    await this.#keep();
    this.end(reason);
  }

  /** Ends the workers at once, and with `reason` all that waits for them and all that will. */
  end(reason: SmolError): void {
    this.#isToBeKept = false;
    this.#refuse(reason);
    for (const line of [this.#line, ...this.#threads]) line.end();
  }

  async #keep(): Promise<void> {
    try {
      while (this.#isToBeKept) this.#isToBeKept = await within(KEEPING_MS, this.#ask('keep', []));
    } catch {
      // what is not kept is fetched again
    }
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
