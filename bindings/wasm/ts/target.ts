// The blob's place in the module's memory, which its parts are written into.

import { SmolError } from './errors.js';
import type { BlobBuffer } from './wasm/smolrun_wasm.js';

/** Bytes of a blob. */
export interface Place {
  readonly start: number;
  readonly length: number;
}

export class Target {
  /** Where the blob begins; it stays there when the buffer becomes a model. */
  readonly #pointer: number;
  readonly #memory: WebAssembly.Memory;
  readonly length: number;

  constructor(buffer: BlobBuffer, memory: WebAssembly.Memory, length: number) {
    this.#pointer = buffer.pointer;
    this.#memory = memory;
    this.length = length;
  }

  /** These bytes, in place. Not to be kept: when the module's memory grows, the view is of no use any more. */
  view(place: Place): Uint8Array<ArrayBuffer> {
    return new Uint8Array(this.#memory.buffer as ArrayBuffer, this.#pointer + place.start, place.length);
  }

  /** Writes `bytes` into `place`, `offset` bytes after its start. */
  write(place: Place, offset: number, bytes: Uint8Array): void {
    if (offset + bytes.length > place.length) {
      throw new SmolError('BAD_MANIFEST', `there are more bytes than the ${place.length} that were announced`);
    }
    this.view(place).set(bytes, offset);
  }
}
