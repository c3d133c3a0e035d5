// Node's modules, for where there is no page. No types package: these few functions are all that is used.

export interface NodeWorker {
  postMessage(message: unknown): void;
  on(event: 'message', listener: (message: unknown) => void): void;
  on(event: 'error', listener: (error: Error) => void): void;
  terminate(): Promise<number>;
}

interface WorkerThreads {
  Worker: new (url: URL, options: { execArgv: string[] }) => NodeWorker;
  parentPort: NodeWorker | null;
}

export interface FileHandle {
  stat(): Promise<{ size: number }>;
  read(into: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }>;
  close(): Promise<void>;
}

interface FileSystem {
  open(path: string | URL): Promise<FileHandle>;
  readFile(path: string | URL): Promise<Uint8Array<ArrayBuffer>>;
}

interface Paths {
  pathToFileURL(path: string): URL;
}

const version = (globalThis as { process?: { versions?: { node?: string } } }).process?.versions?.node;

export const isNode: boolean = typeof version === 'string';

/** Such as 22. */
export const nodeVersion = (): number => Number.parseInt(version ?? '0', 10);

// Names that are not literals, so that neither the compiler nor a bundler for pages looks for them.
const load = <Module>(name: string): Promise<Module> => import(`node:${name}`) as Promise<Module>;

export const workerThreads = () => load<WorkerThreads>('worker_threads');
export const fileSystem = () => load<FileSystem>('fs/promises');
export const paths = () => load<Paths>('url');
