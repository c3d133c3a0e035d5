// Finishes a folder that has the page and its models: the list of models, and what the service worker keeps.
// usage: node page.mjs DIST
import { createHash } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

const [dist] = process.argv.slice(2);
const models = join(dist, 'models');

const listed = [];
for (const id of await folders(models)) {
  const manifest = JSON.parse(await readFile(join(models, id, 'manifest.json'), 'utf8'));
  const { name, files, hasChatTemplate } = manifest;
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  listed.push({ id, name, bytes, kind: hasChatTemplate ? 'chat' : 'story', manifest: `${id}/manifest.json` });
}
listed.sort((a, b) => b.bytes - a.bytes); // the best first
await writeFile(join(models, 'index.json'), `${JSON.stringify(listed, null, 1)}\n`);

const kept = (await filesBelow(dist)).filter((path) => path !== 'sw.js' && !/^models\/.+\//.test(path)).sort();
const hash = createHash('sha256');
for (const path of kept) hash.update(path).update(await readFile(join(dist, path)));
const serviceWorker = await readFile(join(dist, 'sw.js'), 'utf8');
const finished = serviceWorker
  .replace(/^const VERSION = .*$/m, `const VERSION = '${hash.digest('hex').slice(0, 12)}';`)
  .replace(/^const FILES = .*$/m, `const FILES = ${JSON.stringify(['./', ...kept])};`);
await writeFile(join(dist, 'sw.js'), finished);

async function folders(path) {
  const entries = await readdir(path, { withFileTypes: true });
  return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
}

async function filesBelow(root, inside = '') {
  const found = [];
  for (const entry of await readdir(join(root, inside), { withFileTypes: true })) {
    const path = inside + entry.name;
    if (entry.isDirectory()) found.push(...(await filesBelow(root, `${path}/`)));
    else found.push(path);
  }
  return found;
}
