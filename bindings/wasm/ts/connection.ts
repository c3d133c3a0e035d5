// The page's end of the line to a worker.

import { aborted, SmolError } from './errors.js';
import { isNode, workerThreads } from './node.js';
import type { Calls, Event, Method, Piece, Request } from './protocol.js';
import type { Progress } from './types.js';

/** What may come before an answer. */
export interface Listeners {
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: Progress) => void) | undefined;
  onPiece?: (piece: Piece) => void;
}

interface Pending extends Listeners {
  resolve: (value: never) => void;
  reject: (error: SmolError) => void;
}

interface Line {
  send(request: Request): void;
  end(): void;
}

export class Connection {
  readonly #pending = new Map<number, Pending>();
  readonly #line: Line;
  #ended: SmolError | undefined;
  #lastId = 0;

  private constructor(connect: (listener: (event: Event) => void, failed: (error: unknown) => void) => Line) {
    this.#line = connect(
      (event) => this.#receive(event),
      (error) => this.end(new SmolError('BUG', `the worker failed: ${String(error)}`)),
    );
  }

  /** Starts a worker. */
  static async open(): Promise<Connection> {
    return new Connection(isNode ? await nodeLine() : browserLine);
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
    const abort = () => this.#line.send({ id, method: 'abort' });
    signal?.addEventListener('abort', abort);
    return new Promise<ReturnType<Calls[M]>>((resolve, reject) => {
      this.#pending.set(id, { ...listeners, resolve, reject });
      this.#line.send({ id, method, args });
    }).finally(() => signal?.removeEventListener('abort', abort));
  }

  /** Ends the worker, and with `reason` all that waits for it and all that will. */
  end(reason: SmolError): void {
    if (this.#ended) return;
    this.#ended = reason;
    this.#line.end();
    for (const { reject } of this.#pending.values()) reject(reason);
    this.#pending.clear();
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
        return pending.reject(new SmolError(event.code, event.message));
    }
  }
}

function browserLine(listener: (event: Event) => void, failed: (error: unknown) => void): Line {
  const worker = new Worker(new URL('./worker.js', import.meta.url), { type: 'module', name: 'smolrun' });
  worker.onmessage = ({ data }) => listener(data as Event);
  worker.onerror = (event) => failed(event.message || 'it could not be loaded');
  return { send: (request) => worker.postMessage(request), end: () => worker.terminate() };
}

async function nodeLine() {
  const { Worker } = await workerThreads();
  return (listener: (event: Event) => void, failed: (error: unknown) => void): Line => {
    // Flags of the program, such as --eval, are not the worker's.
    const worker = new Worker(new URL('./worker.js', import.meta.url), { execArgv: [] });
    worker.on('message', (event) => listener(event as Event));
    worker.on('error', failed);
    return { send: (request) => worker.postMessage(request), end: () => void worker.terminate() };
  };
}
