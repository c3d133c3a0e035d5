// The blob's place in the module's memory, which its parts are written into.

import { SmolError } from './errors.js';
import type { BlobBuffer } from './wasm/smolrun_wasm.js';

/** Bytes of a blob. */
export interface Place {
  readonly start: number;
  readonly length: number;
}

export class Target {
  /** Held, since its memory is freed when it is collected; none when that has been freed. */
  #buffer: BlobBuffer | undefined;
  /** Where the blob begins; it stays there when the buffer becomes a model. */
  readonly #pointer: number;
  readonly #memory: WebAssembly.Memory;
  readonly length: number;

  constructor(buffer: BlobBuffer, memory: WebAssembly.Memory, length: number) {
    this.#buffer = buffer;
    this.#pointer = buffer.pointer;
    this.#memory = memory;
    this.length = length;
  }

  /** These bytes, in place. Not to be kept: when the module's memory grows, the view is of no use any more. */
  view(place: Place): Uint8Array<ArrayBuffer> {
    if (!this.#buffer) throw new SmolError('CLOSED', 'the memory of the blob was freed');
    return new Uint8Array(this.#memory.buffer as ArrayBuffer, this.#pointer + place.start, place.length);
  }

  /** Writes `bytes` into `place`, `offset` bytes after its start. */
  write(place: Place, offset: number, bytes: Uint8Array): void {
    if (offset + bytes.length > place.length) {
      throw new SmolError('BAD_MANIFEST', `there are more bytes than the ${place.length} that were announced`);
    }
    this.view(place).set(bytes, offset);
  }

  /** Has the buffer become something else: what fails at that frees its memory. */
  become<T>(make: (buffer: BlobBuffer) => T): T {
    const buffer = this.#buffer;
    if (!buffer) throw new SmolError('CLOSED', 'the memory of the blob was freed');
    try {
      return make(buffer);
    } catch (error) {
      this.#buffer = undefined;
      throw error;
    }
  }
}
