// The line between a page and its workers, in browsers and in Node.

import { isNode, workerThreads } from './node.js';
import { SmolError } from './errors.js';

/** The page's end. */
export interface Line {
  send(message: unknown): void;
  /** Ends the worker, whatever it is at. */
  end(): void;
}

/** What a worker can be: one runs the model, the others compute for it. */
export type Role = 'worker' | 'thread';

/** Starts a worker; `failed` is told of what it does not handle itself. */
export type Start = (role: Role, received: (message: unknown) => void, failed: (error: SmolError) => void) => Line;

export async function starter(): Promise<Start> {
  if (!isNode) return startInBrowser;
  const { Worker } = await workerThreads();
  return (role, received, failed) => {
    // Flags of the program, such as --eval, are not the worker's.
    const worker = new Worker(new URL(`./${role}.js`, import.meta.url), { execArgv: [] });
    worker.on('message', received);
    worker.on('error', (error) => failed(crashed(error.message)));
    return { send: (message) => worker.postMessage(message), end: () => void worker.terminate() };
  };
}

const startInBrowser: Start = (role, received, failed) => {
  const worker = browserWorkers[role]();
  worker.onmessage = ({ data }) => received(data);
  // A script that cannot be had is an event without words.
  worker.onerror = ({ message }) =>
    failed(message ? crashed(message) : new SmolError('NETWORK', `${role}.js could not be loaded`));
  return { send: (message) => worker.postMessage(message), end: () => worker.terminate() };
};

function crashed(message: string): SmolError {
  return new SmolError('BUG', `a worker failed: ${message}`);
}

/** Written out, as bundlers look for it. */
const browserWorkers: Record<Role, () => Worker> = {
  worker: () => new Worker(new URL('./worker.js', import.meta.url), { type: 'module', name: 'smolrun' }),
  thread: () => new Worker(new URL('./thread.js', import.meta.url), { type: 'module', name: 'smolrun-thread' }),
};

/** A worker's end. */
export interface Page {
  send(message: unknown): void;
  listen(listener: (message: unknown) => void): void;
}

export async function page(): Promise<Page> {
  if (!isNode) {
    return {
      send: (message) => self.postMessage(message),
      listen: (listener) => self.addEventListener('message', ({ data }) => listener(data)),
    };
  }
  const port = (await workerThreads()).parentPort;
  if (!port) throw new SmolError('BUG', 'this is a worker, and no program of its own');
  return {
    send: (message) => port.postMessage(message),
    listen: (listener) => port.on('message', listener),
  };
}
