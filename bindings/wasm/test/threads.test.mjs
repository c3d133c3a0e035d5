// The package on a cross-origin isolated page: several threads, and the same numbers.
import assert from 'node:assert/strict';
import {
  after, before, beforeEach, BLANK, close, dist, distance, launchForContexts, openBlank, real, realBlob, smolrun, talesF32, test,
} from './setup.mjs';
import { serve } from './server.mjs';

const MANIFEST = '/models/tales-4m/manifest.json';
const IDS = [316, 471, 260, 640, 12, 7, 1999];

let server, browser, page;

before(async () => {
  browser = await launchForContexts();
  server = await serve(dist, { '/blank.html': BLANK, '/tales-f32.bin': talesF32 }, { isIsolated: true });
});
after(async () => {
  await close(browser);
  server.close();
});
beforeEach(async (test) => {
  const context = await browser.newContext();
  test.after?.(() => close(context));
  page = await openBlank(context, server);
  await page.evaluate(() => {
    globalThis.generate = async (model, prompt, options) => {
      const generation = model.generate(prompt, options);
      for await (const _ of generation);
      return generation.ids.join();
    };
  });
});

test('the logits of any number of threads are the native ones', async () => {
  const native = await smolrun(['logits', talesF32, '--ids', IDS.join()]);
  for (const threads of [1, 2, 3]) {
    const found = await page.evaluate(
      async ([ids, threads]) => {
        const model = await Smol.load('/tales-f32.bin', { threads });
        const logits = Array.from(await model.logits(ids));
        model.close();
        return { logits, info: model.info };
      },
      [IDS, threads],
    );
    assert.equal(found.info.threads, threads);
    assert.equal(distance(found.logits, native.map(Math.fround)), 0);
  }
});

test('the real model says what it says natively, on as many threads as there are processors', async () => {
  const native = await smolrun([realBlob, 'Hello', '-n', '24', '--json']);
  const found = await page.evaluate(async (manifest) => {
    const threads = Math.min(navigator.hardwareConcurrency, 4);
    const model = await Smol.load(manifest, { threads });
    const ids = await generate(model, 'Hello', { maxTokens: 24 });
    model.close();
    return { ids, found: model.info.threads, threads };
  }, `/models/${real}/manifest.json`);
  assert.equal(found.found, found.threads);
  assert.equal(found.ids, native.ids.join());
});

test('threads live through generations, stops, and what comes too late to be awake for', async () => {
  const found = await page.evaluate(async (manifest) => {
    const model = await Smol.load(manifest, { threads: 2 });
    const ids = [];
    for (let i = 0; i < 3; i += 1) {
      ids.push(await generate(model, 'Once upon a time', { maxTokens: 24 }));
      for await (const _ of model.generate('The old king', { maxTokens: 900 })) break;
      const stop = new AbortController();
      const stopped = failure(generate(model, 'Deep in the forest', { maxTokens: 900, signal: stop.signal }));
      setTimeout(() => stop.abort(), 50);
      ids.push((await stopped).code);
      await new Promise((resolve) => setTimeout(resolve, 100)); // long enough for the others to fall asleep
    }
    model.close();
    const again = await Smol.load(manifest, { threads: 2 });
    ids.push(await generate(again, 'Once upon a time', { maxTokens: 24 }));
    again.close();
    return ids;
  }, MANIFEST);
  assert.equal(new Set(found).size, 2, found.join(' / '));
  assert.equal(found[1], 'ABORTED');
});

test('two models have threads of their own', async () => {
  const found = await page.evaluate(async (manifest) => {
    const models = await Promise.all([2, 3].map((threads) => Smol.load(manifest, { threads })));
    const ids = await Promise.all(models.map((model) => generate(model, 'Once upon a time', { maxTokens: 24 })));
    for (const model of models) model.close();
    return ids;
  }, MANIFEST);
  assert.equal(found[0], found[1]);
});

test('where there is no room for memory to share, there is one thread unless more are asked for', async () => {
  const found = await page.evaluate(async (manifest) => {
    const Memory = WebAssembly.Memory;
    WebAssembly.Memory = class {
      constructor(description) {
        if (description.shared) throw new RangeError('no addresses');
        return new Memory(description);
      }
    };
    const model = await Smol.load(manifest);
    model.close();
    return { threads: model.info.threads, failed: await failure(Smol.load(manifest, { threads: 2 })) };
  }, MANIFEST);
  assert.equal(found.threads, 1);
  assert.equal(found.failed.code, 'OUT_OF_MEMORY');
});

test('when one worker fails, all end', async () => {
  const found = await page.evaluate(async (manifest) => {
    const workers = [];
    globalThis.Worker = class extends Worker {
      isEnded = false;
      constructor(...args) {
        super(...args);
        workers.push(this);
      }
      terminate() {
        this.isEnded = true;
        super.terminate();
      }
    };
    const model = await Smol.load(manifest, { threads: 3 });
    const running = failure(generate(model, 'Once upon a time', { maxTokens: 900 }));
    workers[1].dispatchEvent(new ErrorEvent('error', { message: 'unreachable' }));
    const failures = [await running, await failure(model.tokenize('Hello'))];
    return { failures, ended: workers.map(({ isEnded }) => isEnded) };
  }, MANIFEST);
  assert.deepEqual(found.ended, [true, true, true]);
  for (const { code, message } of found.failures) {
    assert.equal(code, 'BUG');
    assert.match(message, /a worker failed: unreachable/);
  }
});

test('a thread whose script is not there is an error, and no wait', async () => {
  server.missing.add('/smolrun/thread.js');
  try {
    const failed = await page.evaluate((manifest) => failure(Smol.load(manifest, { threads: 2 })), MANIFEST);
    assert.equal(failed.code, 'NETWORK');
    assert.match(failed.message, /thread\.js/);
  } finally {
    server.missing.clear();
  }
});
