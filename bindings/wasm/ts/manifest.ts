// A model in parts: what `scripts/build_web.sh` writes beside them.

import { SmolError } from './errors.js';

export interface Manifest {
  readonly name: string;
  readonly version: string;
  readonly architecture: string;
  readonly parameters: number;
  readonly quantisation: string;
  readonly contextLength: number;
  readonly licence: string;
  /** Of the blob. */
  readonly bytes: number;
  /** The blob's pieces, in order. */
  readonly files: readonly Part[];
}

export interface Part {
  /** Beside the manifest. */
  readonly path: string;
  /** As it is transferred. */
  readonly bytes: number;
  /** Of what is transferred, in hexadecimal digits. */
  readonly sha256: string;
  readonly encoding: 'identity' | 'gzip';
  /** As it lies in the blob. */
  readonly blobBytes: number;
}

/** No part is larger, so that no more than a few of these are in memory beside the blob. */
const MAX_PART_BYTES = 32_000_000;

const isText = (value: unknown): value is string => typeof value === 'string';
const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

/** Reads a manifest and checks all that the loader relies on. */
export function parseManifest(text: string): Manifest {
  let manifest: Partial<Manifest>;
  try {
    manifest = JSON.parse(text) as Partial<Manifest>;
  } catch {
    throw bad('it is not JSON');
  }
  const { name, bytes, files } = manifest ?? {};
  if (!isText(name)) throw bad('it has no name');
  if (!isCount(bytes) || !Array.isArray(files)) throw bad('it has no bytes or no files');
  files.forEach(checkPart);
  const total = files.reduce((sum, part: Part) => sum + part.blobBytes, 0);
  if (total !== bytes) throw bad(`its files make ${total} bytes, not ${bytes}`);
  return manifest as Manifest;
}

function checkPart(part: Part, index: number): void {
  const { path, bytes, sha256, encoding, blobBytes } = part ?? {};
  const isWhole = isText(path) && isCount(bytes) && isCount(blobBytes) && isText(sha256);
  if (!isWhole || !/^[0-9a-f]{64}$/.test(sha256)) throw bad(`file ${index} lacks a path, a length or a hash`);
  if (encoding !== 'identity' && encoding !== 'gzip') throw bad(`${path}: encoding ${String(encoding)}`);
  if (bytes > MAX_PART_BYTES || blobBytes > MAX_PART_BYTES) throw bad(`${path} is larger than ${MAX_PART_BYTES} bytes`);
}

function bad(problem: string): SmolError {
  return new SmolError('BAD_MANIFEST', `not a manifest of a model: ${problem}`);
}
