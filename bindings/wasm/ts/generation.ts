// Token after token, with looks at the worker's messages in between.

import { throwIfAborted } from './errors.js';
import type { Loaded } from './load.js';
import { isNode } from './node.js';
import type { Piece } from './protocol.js';
import type { FinishReason, GenerateOptions, GenerationStats, Message } from './types.js';
import type { Engine } from './wasm/smolrun_wasm.js';

/** Longest time between two looks: below what a person notices, and many times what a look costs. */
const LOOK_AFTER_MS = 8;

export async function generate(
  { engine, memory }: Loaded,
  prompt: string | Message[],
  options: GenerateOptions,
  signal: AbortSignal,
  each: (piece: Piece) => void,
): Promise<FinishReason> {
  const start = performance.now();
  const ids = encode(engine, prompt);
  const keptTokens = engine.rewind(ids);
  await prefill(engine, ids, signal);
  engine.begin(ids, options);

  const stats = { promptTokens: ids.length, keptTokens, tokens: 0, firstTokenMs: 0, decodeMs: 0, memoryBytes: 0 };
  let looked = performance.now();
  for (let step = engine.step(); step; step = engine.step()) {
    const { id, text, finishReason } = step;
    step.free();
    const now = performance.now();
    count(stats, now - start, memory);
    each({ id, text, stats });
    if (finishReason) return finishReason as FinishReason;
    if (now - looked > LOOK_AFTER_MS) {
      await look();
      throwIfAborted(signal);
      looked = performance.now();
    }
  }
  return 'length'; // of no tokens at all
}

function encode(engine: Engine, prompt: string | Message[]): Uint32Array {
  if (typeof prompt === 'string') return engine.encodePrompt(prompt);
  return engine.encodeChat(
    prompt.map(({ role }) => role),
    prompt.map(({ content }) => content),
  );
}

/** Runs all but the prompt's end. */
async function prefill(engine: Engine, ids: Uint32Array, signal: AbortSignal): Promise<void> {
  for (let before = -1, position = 0; position !== before; ) {
    await look();
    throwIfAborted(signal);
    before = position;
    position = engine.prefill(ids);
  }
}

function count(stats: GenerationStats, sinceStart: number, memory: WebAssembly.Memory): void {
  if (stats.tokens === 0) stats.firstTokenMs = sinceStart;
  stats.tokens += 1;
  stats.decodeMs = sinceStart - stats.firstTokenMs;
  stats.memoryBytes = memory.buffer.byteLength;
}

/** Lets messages that have come be handled. A timer would wait for milliseconds. */
const look: () => Promise<void> = isNode
  ? () => new Promise((resolve) => setTimeout(resolve, 0))
  : () =>
      new Promise((resolve) => {
        woken = resolve;
        channel.port2.postMessage(null);
      });

let woken: () => void = () => undefined;
const channel = new MessageChannel();
if (!isNode) channel.port1.onmessage = () => woken();
