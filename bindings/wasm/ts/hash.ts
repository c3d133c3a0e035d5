// SHA-256, which pages may use on https and localhost.

import { SmolError } from './errors.js';

export async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  if (!globalThis.crypto?.subtle) {
    throw new SmolError('INSECURE_CONTEXT', 'hashes can only be checked on a page from https or localhost');
  }
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
