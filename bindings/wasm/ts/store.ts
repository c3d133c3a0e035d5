// What is kept for the next visit: parts by their hash and manifests by their address, in the origin's private file
// system. Its synchronous handles read straight into the module's memory, which the Cache API cannot.

import { sha256 } from './hash.js';
import { parseManifest } from './manifest.js';

/** Of a dedicated worker's file system; TypeScript's library has it for workers only. */
interface SyncAccessHandle {
  read(into: Uint8Array): number;
  write(from: Uint8Array): number;
  truncate(size: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
}

type SyncFileHandle = FileSystemFileHandle & {
  createSyncAccessHandle(options?: { mode: 'read-only' | 'readwrite' }): Promise<SyncAccessHandle>;
};

const FOLDER = 'smolrun';

/** A part's place in the module's memory, taken when it is used: while a file is opened, that memory may grow and leave a view behind. */
type View = () => Uint8Array;

export class Store {
  readonly #parts: FileSystemDirectoryHandle;
  readonly #manifests: FileSystemDirectoryHandle;
  #writing: Promise<void> | undefined;

  private constructor(parts: FileSystemDirectoryHandle, manifests: FileSystemDirectoryHandle) {
    this.#parts = parts;
    this.#manifests = manifests;
  }

  /** None where there is no such file system: in Node, or in a private window of some browsers. */
  static async open(): Promise<Store | undefined> {
    try {
      const root = await navigator.storage.getDirectory();
      const folder = await root.getDirectoryHandle(FOLDER, { create: true });
      const inside = (name: string) => folder.getDirectoryHandle(name, { create: true });
      return new Store(await inside('parts'), await inside('manifests'));
    } catch {
      return undefined;
    }
  }

  /** Fills what `view` gives with the part of this name, if it is there and as long. */
  async readPart(name: string, view: View): Promise<boolean> {
    try {
      const handle = await open(await this.#parts.getFileHandle(name), 'read-only');
      try {
        const into = view();
        return handle.getSize() === into.length && handle.read(into) === into.length;
      } finally {
        handle.close();
      }
    } catch {
      return false; // not there, or in use by another page: the network has it, too
    }
  }

  /** Keeps a part. A write that was cut off leaves a file that is too short, which `readPart` takes for none. */
  async writePart(name: string, view: View): Promise<void> {
    await ignoreFailure(async () => {
      const handle = await open(await this.#parts.getFileHandle(name, { create: true }), 'readwrite');
      try {
        handle.truncate(0);
        handle.write(view());
        handle.flush();
      } finally {
        handle.close();
      }
    });
  }

  async readManifest(url: string): Promise<string | undefined> {
    try {
      const handle = await this.#manifests.getFileHandle(await manifestName(url));
      return await (await handle.getFile()).text();
    } catch {
      return undefined;
    }
  }

  /** Keeps a manifest, for which nobody has to wait. */
  keepManifest(url: string, text: string): void {
    this.#writing = ignoreFailure(async () => {
      const name = await manifestName(url);
      const handle = await open(await this.#manifests.getFileHandle(name, { create: true }), 'readwrite');
      try {
        handle.truncate(0);
        handle.write(new TextEncoder().encode(text));
      } finally {
        handle.close();
      }
    });
  }

  /** Removes the parts that no manifest names any more: those of a model's earlier versions. */
  async sweep(): Promise<void> {
    await this.#writing;
    await ignoreFailure(async () => {
      const named = new Set<string>();
      for await (const entry of this.#manifests.values()) {
        const text = await (await (entry as FileSystemFileHandle).getFile()).text();
        for (const part of parseManifest(text).files) named.add(part.sha256);
      }
      for await (const name of this.#parts.keys()) {
        if (!named.has(name)) await this.#parts.removeEntry(name);
      }
    });
  }
}

function open(file: FileSystemFileHandle, mode: 'read-only' | 'readwrite'): Promise<SyncAccessHandle> {
  return (file as SyncFileHandle).createSyncAccessHandle({ mode });
}

async function manifestName(url: string): Promise<string> {
  return sha256(new TextEncoder().encode(url));
}

/** What cannot be kept, for want of room or because another page is at it, is fetched again: no reason to fail. */
async function ignoreFailure(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch {
    // as above
  }
}
