// Keeps parts for the next visit, when that delays nobody.

import type { Store } from './store.js';
import type { Place, Target } from './target.js';

/** A load that takes longer than this waits for the network, and has time to keep what has come. */
const FAST_LOAD_MS = 2000;

export class Keeper {
  readonly #store: Store;
  readonly #target: Target;
  readonly #waiting: { name: string; place: Place }[] = [];
  readonly #begun = performance.now();

  constructor(store: Store, target: Target) {
    this.#store = store;
    this.#target = target;
  }

  /** Whether there is something that `finish` would keep. */
  get isWaiting(): boolean {
    return this.#waiting.length > 0;
  }

  /** Keeps a part that is in place: at once in a load that takes long, and otherwise when it is asked to. */
  async add(name: string, place: Place): Promise<void> {
    this.#waiting.push({ name, place });
    if (performance.now() - this.#begun > FAST_LOAD_MS) await this.#write();
  }

  /** Keeps what was left for later, and removes what no manifest names any more. */
  async finish(): Promise<void> {
    await this.#write();
    await this.#store.sweep();
  }

  async #write(): Promise<void> {
    for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) {
      const { name, place } = next;
      await this.#store.writePart(name, () => this.#target.view(place));
    }
  }
}
