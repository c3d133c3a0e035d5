// The package in Chromium: what it loads, refuses, and computes.
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  after, before, beforeEach, BLANK, close, dist, distance, launchForContexts, openBlank, real, smolrun, talesF32, talesQ4, test,
} from './setup.mjs';
import { serve } from './server.mjs';

const MANIFEST = '/models/tales-4m/manifest.json';
const TEXT = 'Once upon a time there was a king, 7 ravens and a café.';

/** A manifest of more than 32 bits can address. */
const HUGE = {
  name: 'huge',
  bytes: 160 * 32e6,
  files: Array(160).fill({ path: 'x', bytes: 1, sha256: '0'.repeat(64), encoding: 'identity', blobBytes: 32e6 }),
};

let server, browser, page, folder;

before(async () => {
  browser = await launchForContexts();
  folder = await mkdtemp(join(tmpdir(), 'smolrun-test-'));
  const huge = join(folder, 'huge.json');
  await writeFile(huge, JSON.stringify(HUGE));
  server = await serve(dist, {
    '/blank.html': BLANK,
    '/huge.json': huge,
    '/tales-f32.bin': talesF32,
    '/tales-q4.bin': talesQ4,
  });
});
after(async () => {
  await close(browser);
  server.close();
  await rm(folder, { recursive: true });
});

// Each test has a context of its own, and so nothing in its cache.
beforeEach(async (test) => {
  const context = await browser.newContext();
  test.after?.(() => close(context));
  page = await openBlank(context, server);
});

const parts = async () =>
  JSON.parse(await readFile(join(dist, MANIFEST))).files.map(({ path }) => `/models/tales-4m/${path}`);

test('tokens, text and logits are the native ones', async () => {
  const ids = await smolrun(['tokenize', talesF32], `${JSON.stringify(TEXT)}\n`);
  const native = await smolrun(['logits', talesF32, '--ids', ids.join(',')]);
  const found = await page.evaluate(async (text) => {
    const model = await Smol.load('/tales-f32.bin');
    const ids = Array.from(await model.tokenize(text));
    const logits = Array.from(await model.logits(ids));
    const back = await model.detokenize(ids);
    const { info } = model;
    model.close();
    return { ids, logits, back, info };
  }, TEXT);
  assert.deepEqual(found.ids, ids);
  assert.equal(found.back, TEXT);
  assert.equal(found.info.build, 'relaxed');
  assert.equal(found.info.threads, 1, 'a page that is not isolated has one thread');
  assert.ok(found.info.isExact, 'this processor has fused multiply-add');
  assert.equal(distance(found.logits, native.map(Math.fround)), 0);
});

test('greedy tokens of q4 are the native ones, and so are drawn ones', async () => {
  const prompt = 'The old king said to his youngest son';
  const drawn = { temperature: 0.8, topP: 0.9, topK: 50, minP: 0.02, repetitionPenalty: 1.1, seed: 7 };
  const flags = '--temperature 0.8 --top-p 0.9 --top-k 50 --min-p 0.02 --repetition-penalty 1.1 --seed 7'.split(' ');
  for (const [options, args] of [[{}, []], [drawn, flags]]) {
    const native = await smolrun([talesQ4, prompt, '-n', '48', '--json', ...args]);
    const found = await page.evaluate(
      async ([prompt, options]) => {
        const model = await Smol.load('/models/tales-4m/manifest.json');
        const generation = model.generate(prompt, { maxTokens: 48, ...options });
        let text = '';
        for await (const piece of generation) text += piece;
        const { ids, finishReason, stats } = generation;
        model.close();
        return { ids: [...ids], text, finishReason, stats };
      },
      [prompt, options],
    );
    assert.deepEqual(found.ids, native.ids);
    assert.equal(found.text, native.text);
    assert.equal(found.finishReason, native.finish_reason);
    assert.equal(found.stats.tokens, native.ids.length);
    assert.equal(found.stats.promptTokens, native.prompt_ids.length);
  }
});

test('a second load needs no part from the network', async () => {
  const load = () =>
    page.evaluate(async (manifest) => {
      let last;
      const model = await Smol.load(manifest, { onProgress: (progress) => (last = progress) });
      await model.close();
      return last;
    }, MANIFEST);
  const first = await load();
  assert.deepEqual(first, { loaded: first.total, total: first.total, cached: 0 });
  server.fetched.length = 0;
  const second = await load();
  assert.equal(second.cached, second.total);
  const wanted = await parts();
  assert.deepEqual(server.fetched.filter((path) => wanted.includes(path)), []);
});

test('a load that was cut off goes on where it was', async () => {
  const manifest = `/models/${real}/manifest.json`;
  server.answerOnly(9); // the module, the worker, the manifest, and some of the parts
  const failed = await page.evaluate((manifest) => failure(Smol.load(manifest)), manifest);
  server.answerOnly(Infinity);
  assert.equal(failed.code, 'NETWORK');
  const begun = server.fetched.filter((path) => path.includes('part-')).length;
  assert.ok(begun > 0, 'some parts were asked for');
  server.fetched.length = 0;
  const { progress, ids } = await page.evaluate(async (manifest) => {
    let progress;
    const model = await Smol.load(manifest, { onProgress: (now) => (progress = now) });
    const ids = Array.from(await model.tokenize('Hello'));
    model.close();
    return { progress, ids };
  }, manifest);
  assert.ok(progress.cached > 0 && progress.cached < progress.total, `${progress.cached} of ${progress.total}`);
  assert.equal(progress.loaded, progress.total);
  assert.equal(ids.length, 1);
});

test('a tampered part is refused by name, and not kept', async () => {
  const [part] = await parts();
  server.tampered.add(part);
  try {
    const failed = await page.evaluate((manifest) => failure(Smol.load(manifest)), MANIFEST);
    assert.equal(failed.code, 'HASH_MISMATCH');
    assert.match(failed.message, new RegExp(part.split('/').pop()));
  } finally {
    server.tampered.clear();
  }
  const progress = await page.evaluate(async (manifest) => {
    let last;
    (await Smol.load(manifest, { onProgress: (progress) => (last = progress) })).close();
    return last;
  }, MANIFEST);
  assert.equal(progress.loaded, progress.total);
});

test('a generation stops when it is told to, and the model answers the next', async () => {
  const found = await page.evaluate(async (manifest) => {
    const model = await Smol.load(manifest);
    const stop = new AbortController();
    const generation = model.generate('Once upon a time', { maxTokens: 900, signal: stop.signal });
    let pieces = 0;
    const failed = await failure(
      (async () => {
        for await (const _ of generation) if (++pieces === 5) stop.abort();
      })(),
    );
    const left = model.generate('Once upon a time', { maxTokens: 900 });
    for await (const _ of left) break;
    const again = model.generate('Once upon a time', { maxTokens: 8 });
    for await (const _ of again);
    const { tokens, keptTokens } = again.stats;
    model.close();
    return { failed, tokensOfStopped: generation.ids.length, tokensOfLeft: left.ids.length, tokens, keptTokens };
  }, MANIFEST);
  assert.equal(found.failed.code, 'ABORTED');
  assert.equal(found.failed.name, 'AbortError');
  assert.ok(found.tokensOfStopped < 900 && found.tokensOfLeft < 900);
  assert.equal(found.tokens, 8);
  assert.ok(found.keptTokens > 0, 'the prompt was still there');
});

test('files and bytes load as addresses do', async () => {
  const found = await page.evaluate(async () => {
    const bytes = await (await fetch('/tales-q4.bin')).arrayBuffer();
    const sources = [bytes, new Uint8Array(bytes), new File([bytes], 'tales.bin'), new URL('/tales-q4.bin', location.href)];
    const ids = [];
    for (const source of sources) {
      const model = await Smol.load(source);
      const generation = model.generate('Once', { maxTokens: 4 });
      for await (const _ of generation);
      ids.push(generation.ids.join());
      model.close();
    }
    return ids;
  });
  assert.equal(new Set(found).size, 1, found.join(' / '));
});

test('errors have a code and say what is wrong', async () => {
  const found = await page.evaluate(async (manifest) => {
    const blob = await (await fetch('/tales-q4.bin')).arrayBuffer();
    const damaged = blob.slice(0);
    new Uint8Array(damaged)[70] ^= 1;
    const model = await Smol.load(manifest);
    const run = async (...args) => {
      for await (const _ of model.generate(...args));
    };
    const aborted = new AbortController();
    aborted.abort();
    const failures = {
      damaged: await failure(Smol.load(damaged)),
      short: await failure(Smol.load(blob.slice(0, 100_000))),
      text: await failure(Smol.load(new Blob(['no blob at all']))),
      missing: await failure(Smol.load('/no-such.bin')),
      noManifest: await failure(Smol.load('/models/index.json')),
      threads: await failure(Smol.load(manifest, { threads: 2 })),
      halfThread: await failure(Smol.load(manifest, { threads: 0.5 })),
      aborted: await failure(Smol.load(manifest, { signal: aborted.signal })),
      topP: await failure(run('Once', { topP: 7 })),
      maxTokens: await failure(run('Once', { maxTokens: -1 })),
      chat: await failure(run([{ role: 'user', content: 'Hello' }])),
      long: await failure(run('king '.repeat(1100))),
      id: await failure(model.logits([99_999])),
    };
    model.close();
    failures.closed = await failure(model.tokenize('Hello'));
    failures.huge = await failure(Smol.load('/huge.json'));
    WebAssembly.validate = () => false;
    failures.old = await failure(Smol.load(manifest));
    return failures;
  }, MANIFEST);
  const codes = Object.fromEntries(Object.entries(found).map(([name, error]) => [name, error?.code]));
  assert.deepEqual(codes, {
    damaged: 'BAD_BLOB',
    short: 'BAD_BLOB',
    text: 'BAD_BLOB',
    missing: 'NETWORK',
    noManifest: 'BAD_MANIFEST',
    threads: 'NOT_ISOLATED',
    halfThread: 'BAD_ARGUMENT',
    aborted: 'ABORTED',
    topP: 'BAD_ARGUMENT',
    maxTokens: 'BAD_ARGUMENT',
    chat: 'CHAT_TEMPLATE',
    long: 'CONTEXT_FULL',
    id: 'BAD_ARGUMENT',
    closed: 'CLOSED',
    huge: 'OUT_OF_MEMORY',
    old: 'NO_SIMD',
  });
});
