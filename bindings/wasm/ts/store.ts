// What is kept for the next visit: parts by their hash and manifests by their address, in the origin's private file
// system. Its synchronous handles read straight into the module's memory, which the Cache API cannot.
//
// All of it can be fetched, too. So no failure here is one of the load, and no wait for the browser lasts: a store that did not
// answer once is not asked again.

import { sha256 } from './hash.js';
import { TooLate, within } from './limit.js';
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

type Mode = 'read-only' | 'readwrite';

type SyncFileHandle = FileSystemFileHandle & {
  createSyncAccessHandle(options?: { mode: Mode }): Promise<SyncAccessHandle>;
};

const FOLDER = 'smolrun';

/** Longest wait for one answer, which takes milliseconds where all is well. */
const PATIENCE_MS = 5000;

/** A part's place in the module's memory, taken when it is used: while a file is opened, that memory may grow and leave a view behind. */
type View = () => Uint8Array;

export class Store {
  readonly #parts: FileSystemDirectoryHandle;
  readonly #manifests: FileSystemDirectoryHandle;
  /** Whether all manifests that there were to be kept are. */
  #manifest: Promise<boolean> = Promise.resolve(true);
  #isSilent = false;

  private constructor(parts: FileSystemDirectoryHandle, manifests: FileSystemDirectoryHandle) {
    this.#parts = parts;
    this.#manifests = manifests;
  }

  /** None where there is no such file system: in Node, or in a private window of some browsers. */
  static async open(): Promise<Store | undefined> {
    try {
      const root = await ask(navigator.storage, (storage) => storage.getDirectory());
      const folder = await ask(root, (root) => root.getDirectoryHandle(FOLDER, { create: true }));
      const inside = (name: string) => ask(folder, (folder) => folder.getDirectoryHandle(name, { create: true }));
      return new Store(await inside('parts'), await inside('manifests'));
    } catch {
      return undefined;
    }
  }

  /** Fills what `view` gives with the part of this name, if it is there and as long. */
  async readPart(name: string, view: View): Promise<boolean> {
    const isRead = await this.#attempt(() =>
      withFile(this.#parts, name, 'read-only', (file) => {
        const into = view();
        return file.getSize() === into.length && file.read(into) === into.length;
      }),
    );
    return isRead ?? false;
  }

  /** Keeps a part. A write that was cut off leaves a file that is too short, which `readPart` takes for none. */
  async writePart(name: string, view: View): Promise<void> {
    await this.#attempt(() => withFile(this.#parts, name, 'readwrite', (file) => replace(file, view())));
  }

  /** The text of a manifest, if it was kept whole. */
  async readManifest(url: string): Promise<string | undefined> {
    return this.#attempt(async () => {
      const text = await readText(this.#manifests, await manifestName(url));
      parseManifest(text); // or it was cut off
      return text;
    });
  }

  /** Keeps a manifest, for which nobody has to wait. */
  keepManifest(url: string, text: string): void {
    this.#manifest = this.#attempt(async () => {
      const bytes = new TextEncoder().encode(text);
      await withFile(this.#manifests, await manifestName(url), 'readwrite', (file) => replace(file, bytes));
      return true;
    }).then((isKept) => isKept ?? false);
  }

  /** Removes the parts that no manifest names any more: those of a model's earlier versions. */
  async sweep(): Promise<void> {
    if (!(await this.#manifest)) return; // its parts are named nowhere, and may be of use
    await this.#attempt(async () => {
      const named = new Set<string>();
      for (const name of await namesIn(this.#manifests)) {
        const text = await readText(this.#manifests, name);
        if (text === '') continue; // it was cut off
        for (const part of parseManifest(text).files) named.add(part.sha256);
      }
      for (const name of await namesIn(this.#parts)) {
        if (!named.has(name)) await ask(this.#parts, (parts) => parts.removeEntry(name));
      }
    });
  }

  /** What `work` gives; nothing where it fails, for want of a file or of room, or because another page is at it. */
  async #attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
    if (this.#isSilent) return undefined;
    try {
      return await work();
    } catch (error) {
      if (error instanceof TooLate) this.#isSilent = true;
      return undefined;
    }
  }
}

/** Opens a file for as long as `use` takes. To write it is to make it, where it is not there. */
async function withFile<T>(
  folder: FileSystemDirectoryHandle,
  name: string,
  mode: Mode,
  use: (file: SyncAccessHandle) => T,
): Promise<T> {
  const handle = await ask(folder, (folder) => folder.getFileHandle(name, { create: mode === 'readwrite' }));
  const opening = hold(handle, (handle) => (handle as SyncFileHandle).createSyncAccessHandle({ mode }));
  try {
    const file = await within(PATIENCE_MS, opening);
    return use(file);
  } finally {
    // Also where it opens too late: until it is closed, nobody else can use it.
    void opening.then((file) => file.close()).catch(() => undefined);
  }
}

function replace(file: SyncAccessHandle, bytes: Uint8Array): void {
  file.truncate(0);
  file.write(bytes);
  file.flush();
}

async function readText(folder: FileSystemDirectoryHandle, name: string): Promise<string> {
  const handle = await ask(folder, (folder) => folder.getFileHandle(name));
  const file = await ask(handle, (handle) => handle.getFile());
  return ask(file, (file) => file.text());
}

function namesIn(folder: FileSystemDirectoryHandle): Promise<string[]> {
  return ask(folder, async (folder) => {
    const names: string[] = [];
    for await (const name of folder.keys()) names.push(name);
    return names;
  });
}

async function manifestName(url: string): Promise<string> {
  return sha256(new TextEncoder().encode(url));
}

/** The answer to a question, or `TooLate`. */
function ask<Handle extends object, T>(handle: Handle, question: (handle: Handle) => Promise<T>): Promise<T> {
  return within(PATIENCE_MS, hold(handle, question));
}

/** Who waits for an answer, and for whose. */
const held = new Set<{ readonly handle: object }>();

/**
 * The answer to a question, which comes late or never. Chromium drops the question when the handle that was asked is collected
 * as garbage: whoever waits has nothing else that would keep it alive.
 */
async function hold<Handle extends object, T>(handle: Handle, question: (handle: Handle) => Promise<T>): Promise<T> {
  const holder = { handle };
  held.add(holder);
  try {
    return await question(handle);
  } finally {
    held.delete(holder);
  }
}
