// The same package in Node.
import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { convert, dist, distance, execute, package_, realBlob, smolrun, talesF32, talesQ4, test } from './setup.mjs';
import { serve } from './server.mjs';

const IDS = [316, 471, 260, 640, 12, 7, 1999];
const isOld = process.version.startsWith('v20.');
/** Node 20 has relaxed SIMD behind this flag, later ones have it always. */
const RELAXED = isOld ? ['--experimental-wasm-relaxed-simd'] : [];
/** Has the package take this engine for one that has no `i8x16.relaxed_swizzle`, and so no relaxed SIMD. */
const WITHOUT_RELAXED = `
  const validate = WebAssembly.validate;
  WebAssembly.validate = (bytes) => !bytes.join().includes('253,128,2') && validate(bytes);`;

/** What `body` makes of `Smol`, in a process of its own. */
async function inNode(body, flags = []) {
  const script = `import { Smol } from '${join(package_, 'lib/index.js')}';
    const failure = (work) => work.then(() => undefined, ({ code, message }) => ({ code, message }));
    console.log(JSON.stringify(await (async () => { ${body} })()));`;
  const { stdout } = await execute(process.execPath, [...flags, '--input-type=module', '--eval', script]);
  return JSON.parse(stdout);
}

const logits = (blob) => `
  const model = await Smol.load(${JSON.stringify(blob)});
  const logits = Array.from(await model.logits(${JSON.stringify(IDS)}));
  model.close();
  return { build: model.info.build, threads: model.info.threads, isExact: model.info.isExact, logits };`;

test('with relaxed SIMD, logits are the native ones', async () => {
  const native = await smolrun(['logits', talesF32, '--ids', IDS.join()]);
  const found = await inNode(logits(talesF32), RELAXED);
  assert.equal(found.build, 'relaxed');
  assert.equal(found.threads, isOld ? 1 : Math.min(availableParallelism(), 4));
  assert.ok(found.isExact);
  assert.equal(distance(found.logits, native.map(Math.fround)), 0);
});

test('without, they are within 2e-3', async () => {
  const native = await smolrun(['logits', talesF32, '--ids', IDS.join()]);
  const found = await inNode(`${WITHOUT_RELAXED} ${logits(talesF32)}`);
  assert.equal(found.build, 'simd');
  assert.ok(!found.isExact);
  const far = distance(found.logits, native);
  assert.ok(far > 0 && far < 2e-3, `${far}`);
});

test('threads compute the same, or are refused where they are miscompiled', async () => {
  const load = (threads) => `Smol.load(${JSON.stringify(talesF32)}, { threads: ${threads} })`;
  if (isOld) {
    const failed = await inNode(`return failure(${load(2)});`);
    assert.equal(failed.code, 'BAD_ARGUMENT');
    return;
  }
  const found = await inNode(`
    const sums = [];
    for (const threads of [1, 2, 3]) {
      const model = await ${load('threads')};
      sums.push((await model.logits(${JSON.stringify(IDS)})).join());
      model.close();
    }
    return new Set(sums).size;`);
  assert.equal(found, 1);
});

test('greedy tokens of the real model are the native ones', async () => {
  const native = await smolrun([realBlob, 'Hello', '-n', '12', '--json']);
  const found = await inNode(
    `const model = await Smol.load(${JSON.stringify(realBlob)});
    const generation = model.generate('Hello', { maxTokens: 12 });
    for await (const _ of generation);
    model.close();
    return [...generation.ids];`,
    RELAXED,
  );
  assert.deepEqual(found, native.ids);
});

test('the example writes a text', async () => {
  const { stdout, stderr } = await execute(process.execPath, [join(package_, 'example.mjs'), talesQ4, 'Once upon a time']);
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

/** What templates do where a conversation has five messages, which no converter sees. */
const HOSTILE = {
  bytes: `{% set ns = namespace(x='ab') %}{% for i in range(100000) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}`,
  deep: '{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}',
  steps: `{% for i in range(100000) %}{% for j in range(100000) %}{% set x = 'a'|upper %}{% endfor %}{% endfor %}`,
};

test('a hostile chat template is an error, and soon', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'smol-template-'));
  try {
    for (const [limit, template] of Object.entries(HOSTILE)) {
      const model = join(folder, limit);
      await cp(join(package_, '../../models/tales-4m'), model, { recursive: true });
      const config = JSON.parse(await readFile(join(model, 'tokenizer_config.json'), 'utf8'));
      config.chat_template = `{% if messages|length > 4 %}${template}{% endif %}{{ messages[0].content }}`;
      await writeFile(join(model, 'tokenizer_config.json'), JSON.stringify(config));
      const found = await inNode(`
        const model = await Smol.load(${JSON.stringify(await convert(model))});
        const messages = [1, 2, 3, 4, 5].map((i) => ({ role: i % 2 ? 'user' : 'assistant', content: 'a' }));
        const all = async (generation) => { for await (const _ of generation); };
        const start = performance.now();
        const { code, message } = await failure(all(model.generate(messages, { maxTokens: 1 })));
        const milliseconds = performance.now() - start;
        await all(model.generate(messages.slice(0, 3), { maxTokens: 1 }));
        model.close();
        return { code, message, milliseconds, megabytes: process.memoryUsage.rss() / 1e6 };`);
      assert.equal(found.code, 'CHAT_TEMPLATE');
      assert.match(found.message, new RegExp(limit));
      assert.ok(found.milliseconds < 5000 && found.megabytes < 300, JSON.stringify(found));
    }
  } finally {
    await rm(folder, { recursive: true });
  }
});
