// The worker: one model, and but for keeping it one request after the other.

import { SmolError, throwIfAborted } from './errors.js';
import { generate } from './generation.js';
import { Keeper } from './keeper.js';
import { page } from './line.js';
import { load, type Loaded } from './load.js';
import type { Calls, Event, Method, Request } from './protocol.js';
import type { Progress } from './types.js';

interface Context {
  id: number;
  signal: AbortSignal;
}

const line = await page();
const controllers = new Map<number, AbortController>();
let loaded: Loaded | undefined;
/** What is left to be kept, also of a load that failed. */
let keeper: Keeper | undefined;
let last: Promise<void> = Promise.resolve();

line.listen((message) => {
  const request = message as Request;
  if (request.method === 'abort') return controllers.get(request.id)?.abort();
  const controller = new AbortController();
  controllers.set(request.id, controller);
  if (request.method === 'keep') void answer(request, controller.signal);
  else last = last.then(() => answer(request, controller.signal));
});

async function answer({ id, method, args }: Request & { method: Method }, signal: AbortSignal): Promise<void> {
  try {
    throwIfAborted(signal);
    const handle = handlers[method] as (context: Context, ...args: unknown[]) => unknown;
    send({ id, type: 'result', value: await handle({ id, signal }, ...args) });
  } catch (error) {
    const { code, message } = SmolError.from(error);
    send({ id, type: 'error', code, message });
  } finally {
    controllers.delete(id);
  }
}

type Handlers = {
  [M in Method]: (context: Context, ...args: Parameters<Calls[M]>) => ReturnType<Calls[M]> | Promise<ReturnType<Calls[M]>>;
};

const handlers: Handlers = {
  async load({ id, signal }, source, compiled, cache) {
    keeper = cache ? new Keeper() : undefined;
    try {
      const report = (progress: Progress) => send({ id, type: 'progress', progress });
      loaded = await load(source, compiled, keeper, signal, report);
      return { info: loaded.info, isToBeKept: keeper?.isWaiting ?? false };
    } finally {
      keeper?.loaded();
    }
  },
  keep: () => keeper?.next() ?? false,
  tokenize: (_, text, special) => model().engine.tokenize(text, special),
  detokenize: (_, ids, skipSpecial) => model().engine.detokenize(ids, skipSpecial),
  logits: (_, ids) => model().engine.logits(ids),
  generate: ({ id, signal }, prompt, options) =>
    generate(model(), prompt, options, signal, (piece) => send({ id, type: 'piece', piece })),
};

function send(event: Event): void {
  line.send(event);
}

function model(): Loaded {
  if (!loaded) throw new SmolError('BAD_ARGUMENT', 'no model was loaded');
  return loaded;
}
