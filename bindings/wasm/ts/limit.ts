// Waits for what may never answer.

import { aborted } from './errors.js';

/** A wait is over after so many pieces of it, not by the clock: while the machine slept nobody could have answered. */
const PIECES = 10;

/** What was waited for took too long. It may still come, and whoever asked for it has to put it away. */
export class TooLate extends Error {
  constructor(ms: number) {
    super(`no answer within ${ms} ms`);
  }
}

/** What `work` gives, or `TooLate` after so many milliseconds. */
export async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setInterval> | undefined;
  let left = PIECES;
  const over = new Promise<never>((_, reject) => {
    timer = setInterval(() => {
      left -= 1;
      if (left === 0) reject(new TooLate(ms));
    }, ms / PIECES);
  });
  try {
    return await Promise.race([work, over]);
  } finally {
    clearInterval(timer);
  }
}

/** What `work` gives, or the error that it was aborted as soon as `signal` says so, whatever `work` waits for. */
export async function abortable<T>(signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  if (!signal) return work;
  let abort = () => {};
  const over = new Promise<never>((_, reject) => {
    abort = () => reject(aborted());
    if (signal.aborted) abort();
    else signal.addEventListener('abort', abort);
  });
  try {
    return await Promise.race([work, over]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}
