// What is to be kept for the next visit: done when that delays nobody, and waited for by nobody.

/** A load that takes longer than this waits for the network, and has time to keep what has come. */
const FAST_LOAD_MS = 2000;

/** Keeps something, as far as it can. */
type Work = () => Promise<void>;

export class Keeper {
  readonly #waiting: Work[] = [];
  readonly #begun = performance.now();
  #last: Promise<void> = Promise.resolve();
  #isLoading = true;

  /** Whether there is something left for `next`. */
  get isWaiting(): boolean {
    return this.#waiting.length > 0;
  }

  /** Leaves something to be done: at once in a load that takes long, and otherwise when it is asked for. */
  add(work: Work): void {
    this.#waiting.push(work);
    if (performance.now() - this.#begun > FAST_LOAD_MS) void this.#workWhileLoading();
  }

  /** Does nothing more of itself: from now on there are others to be served. */
  loaded(): void {
    this.#isLoading = false;
  }

  /** Does some of what is left; whether there is more. */
  async next(): Promise<boolean> {
    // One after the other, whoever asks.
    await (this.#last = this.#last.then(() => this.#waiting.shift()?.()));
    return this.isWaiting;
  }

  async #workWhileLoading(): Promise<void> {
    while (this.#isLoading && (await this.next()));
  }
}
