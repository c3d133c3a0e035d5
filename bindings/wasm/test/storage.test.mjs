// A browser whose storage does not answer, or answers late: a load does all the same, and in time.
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  after, before, beforeEach, BLANK, close, dist, launchForContexts, openBlank, PATIENCE_MS, real, smolrun, talesQ4, test,
} from './setup.mjs';
import { serve } from './server.mjs';

const MANIFEST = '/models/tales-4m/manifest.json';
const REAL_MANIFEST = `/models/${real}/manifest.json`;
const PROMPT = 'Once upon a time';
/** Longest that anything may take here, when each wait of the package is a tenth of what it is. */
const LIMIT_MS = PATIENCE_MS / 2;
/** Requests for the page's module, its worker, and the manifest: of the parts that come after them some are answered. */
const SOME_PARTS = 9;

/** What there may be no answer to. */
const QUESTIONS = [
  ['StorageManager', 'getDirectory'],
  ['FileSystemDirectoryHandle', 'getDirectoryHandle'],
  ['FileSystemDirectoryHandle', 'getFileHandle'],
  ['FileSystemFileHandle', 'createSyncAccessHandle'],
];

let server, browser, page, folder;

before(async () => {
  // With it the script of a worker can have garbage collected.
  browser = await launchForContexts('--js-flags=--expose-gc');
  folder = await mkdtemp(join(tmpdir(), 'smolrun-test-'));
  const serviceWorker = join(folder, 'sw.js');
  await writeFile(serviceWorker, `${silence([['Cache', 'match']])}\n${await readFile(join(dist, 'sw.js'))}`);
  server = await serve(dist, { '/blank.html': BLANK, '/sw.js': serviceWorker });
});
after(async () => {
  await close(browser);
  server.close();
  await rm(folder, { recursive: true });
});
beforeEach(async (test) => {
  const context = await browser.newContext();
  test.after?.(() => close(context));
  page = await openBlank(context, server);
  await page.evaluate((limit) => {
    // Has `script` run in workers before their own.
    globalThis.prepareWorkers = (script) => {
      const address = (text) => URL.createObjectURL(new Blob([text], { type: 'text/javascript' }));
      const Plain = (globalThis.Plain ??= Worker);
      globalThis.Worker = class extends Plain {
        constructor(url, options) {
          const both = [address(script), url].map((from) => `import ${JSON.stringify(String(from))};`);
          super(address(both.join('\n')), options);
        }
      };
    };
    globalThis.settled = (what, work) => {
      const over = new Promise((_, reject) => setTimeout(() => reject(new Error(`${what}: hangs`)), limit));
      return Promise.race([work, over]);
    };
    globalThis.folders = async () => {
      const root = await (await navigator.storage.getDirectory()).getDirectoryHandle('smolrun', { create: true });
      const [parts, manifests] = ['parts', 'manifests'].map((name) => root.getDirectoryHandle(name, { create: true }));
      return { parts: await parts, manifests: await manifests };
    };
    globalThis.generate = async (model, prompt) => {
      const generation = model.generate(prompt, { maxTokens: 12 });
      for await (const _ of generation);
      return [...generation.ids];
    };
  }, LIMIT_MS);
});

/** Has a worker's storage not answer some questions. */
const silence = (questions) => `
  const tick = globalThis.setInterval;
  globalThis.setInterval = (work, ms) => tick(work, ms / 10);
  for (const [type, question] of ${JSON.stringify(questions)}) {
    globalThis[type].prototype[question] = () => new Promise(() => {});
  }`;

const partsOf = async (manifest) => JSON.parse(await readFile(join(dist, manifest))).files;

const prepare = (script) => page.evaluate((script) => prepareWorkers(script), script);

/** How a load fails. */
const failing = (manifest) =>
  page.evaluate((manifest) => settled('a failing load', failure(Smol.load(manifest))), manifest);

for (const question of QUESTIONS) {
  test(`a load does without ${question.join('.')}`, async () => {
    await prepare(silence([question]));
    const native = await smolrun([talesQ4, PROMPT, '-n', '12', '--json']);
    const ids = await page.evaluate(
      async ([manifest, prompt]) => {
        const model = await settled('the load', Smol.load(manifest));
        const ids = await settled('the generation', generate(model, prompt));
        await settled('the end', model.close());
        return ids;
      },
      [MANIFEST, PROMPT],
    );
    assert.deepEqual(ids, native.ids);
  });

  test(`a load fails for its own reason without ${question.join('.')}`, async () => {
    await prepare(silence([question]));
    const [{ path }] = await partsOf(MANIFEST);
    server.tampered.add(`/models/tales-4m/${path}`);
    try {
      assert.equal((await failing(MANIFEST)).code, 'HASH_MISMATCH');
    } finally {
      server.tampered.clear();
    }
    server.answerOnly(SOME_PARTS);
    try {
      assert.equal((await failing(REAL_MANIFEST)).code, 'NETWORK');
    } finally {
      server.answerOnly(Infinity);
    }
  });
}

test('what is kept for later delays neither an answer nor an error', async () => {
  await prepare(`${silence([]).replace('ms / 10', 'ms * 100')}
    const { now } = performance;
    performance.now = () => 1000 * now.call(performance); // a load takes long, and so keeps what comes at once
    const open = FileSystemFileHandle.prototype.createSyncAccessHandle;
    FileSystemFileHandle.prototype.createSyncAccessHandle = function (options) {
      return options.mode === 'readwrite' ? new Promise(() => {}) : open.call(this, options);
    };`);
  await page.evaluate(async (manifest) => {
    const model = await settled('the load', Smol.load(manifest));
    await settled('the generation', generate(model, 'Hello'));
  }, REAL_MANIFEST);
  server.answerOnly(SOME_PARTS);
  try {
    assert.equal((await failing(REAL_MANIFEST)).code, 'NETWORK');
  } finally {
    server.answerOnly(Infinity);
  }
});

test('a load is aborted at once, whatever it waits for', async () => {
  await prepare(silence([QUESTIONS[0]]).replace('ms / 10', 'ms * 100'));
  for (const after of [0, 1, 10, 100, 1000]) {
    const failed = await page.evaluate(
      ([manifest, after]) => {
        const stop = new AbortController();
        setTimeout(() => stop.abort(), after);
        return settled('an aborted load', failure(Smol.load(manifest, { signal: stop.signal })));
      },
      [MANIFEST, after],
    );
    assert.equal(failed.code, 'ABORTED', `after ${after} ms`);
  }
});

test('a visit with what was kept does without a storage that falls silent', async () => {
  await page.evaluate(async (manifest) => (await Smol.load(manifest)).close(), MANIFEST);
  for (const question of [...QUESTIONS, ['FileSystemFileHandle', 'getFile'], ['Blob', 'text']]) {
    await prepare(silence([question]));
    const progress = await page.evaluate(async (manifest) => {
      let last;
      const load = Smol.load(manifest, { onProgress: (progress) => (last = progress) });
      const model = await settled('the load', load);
      await settled('the end', model.close());
      return last;
    }, MANIFEST);
    assert.equal(progress.loaded, progress.total, question.join('.'));
  }
});

test('nothing that hangs while old parts are removed delays the end', async () => {
  const never = '() => new Promise(() => {})';
  const keys = `() => ({ next: ${never}, [Symbol.asyncIterator]() { return this; } })`;
  for (const [question, answer] of [['keys', keys], ['removeEntry', never]]) {
    await prepare(`${silence([])} FileSystemDirectoryHandle.prototype.${question} = ${answer};`);
    await page.evaluate(async (manifest) => {
      const { parts } = await folders();
      for await (const name of parts.keys()) await parts.removeEntry(name);
      await parts.getFileHandle('0'.repeat(64), { create: true }); // there is one to be removed
      const model = await settled('the load', Smol.load(manifest));
      await settled('the end', model.close());
    }, MANIFEST);
  }
});

test('a file that opens too late is closed again', async () => {
  await prepare(`${silence([])}
    const seen = new BroadcastChannel('seen');
    const open = FileSystemFileHandle.prototype.createSyncAccessHandle;
    FileSystemFileHandle.prototype.createSyncAccessHandle = async function (options) {
      await new Promise((resolve) => setTimeout(resolve, 2000)); // four times as long as there is patience
      const file = await open.call(this, options);
      const close = file.close.bind(file);
      file.close = () => (close(), seen.postMessage('closed'));
      seen.postMessage('opened');
      return file;
    };`);
  const seen = await page.evaluate(async (manifest) => {
    const seen = [];
    const isClosed = new Promise((resolve) => {
      new BroadcastChannel('seen').onmessage = ({ data }) => seen.push(data) && data === 'closed' && resolve();
    });
    const model = await settled('the load', Smol.load(manifest));
    await settled('the file', isClosed);
    await settled('the end', model.close());
    return seen;
  }, MANIFEST);
  assert.deepEqual(seen.slice(0, 2), ['opened', 'closed']);
});

test('all is kept, also while garbage is collected', async () => {
  // Chromium forgets what a handle was asked when that is collected.
  await prepare(`
    const { prototype } = FileSystemFileHandle;
    const collect = async () => {
      for (let i = 0; i < 8; i += 1) gc(), await new Promise((resolve) => setTimeout(resolve));
    };
    for (const question of ['createSyncAccessHandle', 'getFile']) {
      const ask = prototype[question];
      prototype[question] = function (options) {
        const answer = ask.call(this, options);
        void collect();
        return answer;
      };
    }`);
  for (const isFirst of [true, false]) {
    const progress = await page.evaluate(async (manifest) => {
      let last;
      const model = await settled('the load', Smol.load(manifest, { onProgress: (progress) => (last = progress) }));
      await settled('the end', model.close());
      return last;
    }, REAL_MANIFEST);
    assert.equal(progress.cached, isFirst ? 0 : progress.total);
  }
});

test('a manifest that was cut off is none, and old parts go all the same', async () => {
  await page.evaluate(async (manifest) => {
    await (await Smol.load(manifest)).close();
    const { parts, manifests } = await folders();
    for await (const file of manifests.values()) await (await file.createWritable()).close(); // with nothing in it
    for await (const name of parts.keys()) await parts.removeEntry(name);
    await parts.getFileHandle('0'.repeat(64), { create: true });
    await manifests.getFileHandle('another that was cut off', { create: true });
  }, MANIFEST);
  server.missing.add(MANIFEST);
  try {
    assert.equal((await failing(MANIFEST)).code, 'NETWORK');
  } finally {
    server.missing.clear();
  }
  const parts = await page.evaluate(async (manifest) => {
    await (await Smol.load(manifest)).close();
    return Array.fromAsync((await folders()).parts.keys());
  }, MANIFEST);
  assert.deepEqual(parts, [(await partsOf(MANIFEST))[0].sha256]);
});

test('the page comes from the network when its service worker has no answer from the cache', async () => {
  await page.evaluate(() => localStorage.setItem('model', 'tales-4m'));
  const ready = () => page.waitForSelector('html[data-ready="tales-4m"]', { state: 'attached' });
  await page.goto(server.url);
  await ready();
  await page.waitForFunction(() => navigator.serviceWorker.controller);
  server.fetched.length = 0;
  await page.reload();
  await ready();
  assert.ok(server.fetched.includes('/app.js'), `${server.fetched}`);
});
