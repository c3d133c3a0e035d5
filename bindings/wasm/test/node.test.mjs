// The same package in Node.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { dist, distance, package_, realBlob, smolrun, talesF32, talesQ4 } from './setup.mjs';
import { serve } from './server.mjs';

const run = promisify(execFile);
const IDS = [316, 471, 260, 640, 12, 7, 1999];
/** Node 20 has relaxed SIMD behind this flag, later ones have it without. */
const RELAXED = '--experimental-wasm-relaxed-simd';

/** What `body` makes of `Smol`, in a process of its own. */
async function inNode(body, flags = []) {
  const script = `import { Smol } from '${join(package_, 'lib/index.js')}';
    const failure = (work) => work.then(() => undefined, ({ code, message }) => ({ code, message }));
    console.log(JSON.stringify(await (async () => { ${body} })()));`;
  const { stdout } = await run(process.execPath, [...flags, '--input-type=module', '--eval', script], { maxBuffer: 1 << 28 });
  return JSON.parse(stdout);
}

const logits = (blob, threads) => `
  const model = await Smol.load(${JSON.stringify(blob)}, { threads: ${threads} });
  const logits = Array.from(await model.logits(${JSON.stringify(IDS)}));
  model.close();
  return { build: model.info.build, threads: model.info.threads, isExact: model.info.isExact, logits };`;

test('with relaxed SIMD, logits are the native ones', async () => {
  const native = await smolrun(['logits', talesF32, '--ids', IDS.join()]);
  for (const threads of [1, 2]) {
    const found = await inNode(logits(talesF32, threads), [RELAXED]);
    assert.equal(found.build, 'relaxed');
    assert.equal(found.threads, threads);
    assert.ok(found.isExact);
    assert.equal(distance(found.logits, native.map(Math.fround)), 0);
  }
});

test('without, they are within 2e-3', async () => {
  const native = await smolrun(['logits', talesF32, '--ids', IDS.join()]);
  const flags = process.version.startsWith('v20.') ? [] : ['--no-wasm-relaxed-simd'];
  const [one, two] = await Promise.all([1, 2].map((threads) => inNode(logits(talesF32, threads), flags)));
  assert.equal(one.build, 'simd');
  assert.ok(!one.isExact);
  const far = distance(one.logits, native);
  assert.ok(far > 0 && far < 2e-3, `${far}`);
  assert.equal(distance(two.logits, one.logits), 0);
});

test('greedy tokens of q4 are the native ones', async () => {
  const native = await smolrun([realBlob, 'Hello', '-n', '12', '--json']);
  const found = await inNode(
    `const model = await Smol.load(${JSON.stringify(realBlob)});
    const generation = model.generate('Hello', { maxTokens: 12 });
    for await (const _ of generation);
    model.close();
    return [...generation.ids];`,
    [RELAXED],
  );
  assert.deepEqual(found, native.ids);
});

test('the example writes a text', async () => {
  const { stdout, stderr } = await run(process.execPath, [join(package_, 'example.mjs'), talesQ4, 'Once upon a time']);
  assert.ok(stdout.length > 100);
  assert.match(stderr, /tokens, the first after/);
});

test('manifests load from paths and from servers', async () => {
  const server = await serve(dist);
  try {
    const manifest = 'models/tales-4m/manifest.json';
    const sizes = await inNode(`
      const sizes = [];
      for (const source of ${JSON.stringify([join(dist, manifest), `${server.url}/${manifest}`])}) {
        const model = await Smol.load(source);
        sizes.push(model.info.bytes);
        model.close();
      }
      return sizes;`);
    assert.equal(sizes[0], sizes[1]);
  } finally {
    server.close();
  }
});

test('what cannot be loaded is an error with a code', async () => {
  const found = await inNode(`return [
    await failure(Smol.load('/no/such/file.bin')),
    await failure(Smol.load(${JSON.stringify(join(package_, 'package.json'))})),
    await failure(Smol.load(new Uint8Array(1000))),
  ].map(({ code }) => code);`);
  assert.deepEqual(found, ['NETWORK', 'BAD_MANIFEST', 'BAD_BLOB']);
});
