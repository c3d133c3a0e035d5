// Cuts a blob into parts and writes the manifest beside them.
// usage: node pack.mjs BLOB INFO.json CONFIG.json NAME LICENCE OUT_DIR (INFO.json: what `smolrun info --json` prints)
import { createHash } from 'node:crypto';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';

/** Small enough that a few in memory are nothing beside the blob, and that little is lost when one is cut off. */
const PART_BYTES = 4 * 1024 * 1024;
/** What compression must leave at most to be worth unpacking. */
const WORTH_PACKING = 0.98;

const [blobPath, infoPath, configPath, name, licence, outDir] = process.argv.slice(2);
const { model } = JSON.parse(await readFile(infoPath, 'utf8'));
const config = JSON.parse(await readFile(configPath, 'utf8'));
const blob = await readFile(blobPath);

await rm(outDir, { recursive: true, force: true });
await mkdir(outDir, { recursive: true });
const files = [];
for (let start = 0; start < blob.length; start += PART_BYTES) {
  files.push(await writePart(blob.subarray(start, start + PART_BYTES), files.length));
}
const manifest = {
  name,
  version: model.directory_sha256.slice(0, 12),
  architecture: config.architectures[0],
  parameters: model.parameters,
  quantisation: model.dtype,
  contextLength: model.max_position_embeddings,
  hasChatTemplate: model.has_chat_template,
  licence,
  bytes: blob.length,
  files,
};
await writeFile(join(outDir, 'manifest.json'), `${JSON.stringify(manifest, null, 1)}\n`);

async function writePart(bytes, index) {
  const packed = await promisify(gzip)(bytes, { level: 9, memLevel: 9 });
  const isPacked = packed.length < bytes.length * WORTH_PACKING;
  const body = isPacked ? packed : bytes;
  const sha256 = createHash('sha256').update(body).digest('hex');
  // The hash in its name, so that no cache on the way ever gives another version's part.
  const path = `part-${String(index).padStart(2, '0')}-${sha256.slice(0, 8)}.${isPacked ? 'gz' : 'bin'}`;
  await writeFile(join(outDir, path), body);
  return { path, bytes: body.length, sha256, encoding: isPacked ? 'gzip' : 'identity', blobBytes: bytes.length };
}
