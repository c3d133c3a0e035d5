// The page as people use it: with the real model, in Chromium.
import assert from 'node:assert/strict';
import { mkdtemp, mkdir, readFile, rm } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, close, dist, launch, launchForContexts, PATIENCE_MS, real, test } from './setup.mjs';
import { serve } from './server.mjs';

const QUESTION = 'What is the capital of France?';
const screenshots = process.env.SMOL_SCREENSHOTS;

let server, browser, page, profile;

before(async () => {
  server = await serve(dist);
  profile = await mkdtemp(join(tmpdir(), 'smolrun-profile-'));
  if (screenshots) await mkdir(screenshots, { recursive: true });
  browser = await launch(profile);
  page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  await page.setViewportSize({ width: 1100, height: 780 });
  await page.goto(server.url);
});
after(async () => {
  await close(browser);
  server.close();
  await rm(profile, { recursive: true, force: true });
});

const ready = (name = real) => page.waitForSelector(`html[data-ready="${name}"]`, { state: 'attached' });
const screenshot = async (name) => screenshots && page.screenshot({ path: join(screenshots, `${name}.png`) });
const answer = () => page.locator('#log .assistant').last();

async function ask(text) {
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
}

/** The whole of the last answer. */
async function answered() {
  await page.waitForSelector('#log .assistant:last-child:not([aria-busy])');
  return answer().locator('.text').textContent();
}

async function beGreedy() {
  await page.locator('#temperature').evaluate((slider) => {
    slider.value = 0;
    slider.dispatchEvent(new Event('input'));
  });
}

/** Waits until the whole model is kept, which is done when it has been ready for a while. */
async function kept() {
  const { bytes } = JSON.parse(await readFile(join(dist, 'models', real, 'manifest.json')));
  const keptBytes = async () => {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('smolrun');
    let length = 0;
    for await (const file of (await folder.getDirectoryHandle('parts')).values()) length += (await file.getFile()).size;
    return length;
  };
  for (const start = Date.now(); (await page.evaluate(keptBytes)) < bytes; await page.waitForTimeout(100)) {
    assert.ok(Date.now() - start < PATIENCE_MS, 'all parts are kept');
  }
}

test('it loads and answers', async () => {
  await screenshot('loading');
  await ready();
  await screenshot('desktop-welcome');
  await beGreedy();
  await ask(QUESTION);
  assert.match(await answered(), /Paris/);
  assert.match(await page.textContent('#stats'), /tokens\/s.*MB of memory/);
});

test('an answer stops in the middle', async () => {
  await ask('Write a long story about a lighthouse keeper and the sea.');
  await page.waitForFunction(() => document.querySelector('#log .assistant:last-child .text')?.textContent.length > 40);
  await screenshot('desktop-answer');
  await page.click('#send');
  const stopped = await answered();
  assert.match(await answer().locator('.note').textContent(), /Stopped/);
  await page.waitForTimeout(300);
  assert.equal(await answer().locator('.text').textContent(), stopped);
  await ask('And what is its largest river?'); // it goes on with the conversation
  assert.notEqual(await answered(), '');
});

test('it answers again from its cache, with the network cut', async () => {
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
  await kept();
  server.cut();
  try {
    await page.reload();
    const start = Date.now();
    await ready();
    console.log(`# ready from cache, without a network, after ${Date.now() - start} ms`);
    assert.ok(await page.evaluate(() => crossOriginIsolated), 'the service worker isolates the page');
    const threads = Math.min(availableParallelism(), 4);
    assert.match(await page.textContent('#stats'), new RegExp(`· ${threads} threads?$`));
    await beGreedy();
    await ask(QUESTION);
    assert.match(await answered(), /Paris/);
  } finally {
    server.cut(false);
  }
});

test('another model can be chosen', async () => {
  await page.selectOption('#model', 'tales-4m');
  await ready('tales-4m');
  await ask('Once upon a time');
  assert.ok((await answered()).length > 20);
  await screenshot('desktop-story');
});

test('it is dark or light, and fits a phone', async () => {
  await page.setViewportSize({ width: 390, height: 780 });
  await screenshot('phone-story');
  await page.click('#clear');
  await page.emulateMedia({ colorScheme: 'dark' });
  await screenshot('phone-dark-welcome');
  await page.selectOption('#model', real);
  await ready();
  await beGreedy();
  await ask('Give me three ideas for a rainy afternoon.');
  await answered();
  await screenshot('phone-dark-answer');
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, 'nothing is wider than the screen');
  await page.setViewportSize({ width: 1100, height: 780 });
  await page.click('summary');
  await screenshot('desktop-dark-settings');
  await page.keyboard.press('Escape');
  await page.click('#theme');
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'light');
});

test('every control has a name, and the keyboard reaches it', async () => {
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll('button, select, textarea, input, progress')]
      .filter((control) => !control.ariaLabel && !control.textContent.trim() && !control.labels?.length)
      .map((control) => control.outerHTML),
  );
  assert.deepEqual(nameless, []);
  await page.focus('#model');
  const reached = [];
  for (let i = 0; i < 12; i += 1) {
    reached.push(await page.evaluate(() => document.activeElement.id || document.activeElement.tagName));
    await page.keyboard.press('Tab');
  }
  for (const id of ['model', 'theme', 'clear', 'prompt']) assert.ok(reached.includes(id), `${id}: ${reached}`);
});

test('it refuses a tampered part by name', async () => {
  const folder = `/models/${real}`;
  const { files } = JSON.parse(await readFile(join(dist, folder, 'manifest.json')));
  const { path } = files[Math.floor(files.length / 2)];
  server.tampered.add(`${folder}/${path}`);
  const other = await launchForContexts();
  try {
    const page = await other.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await page.goto(server.url);
    await page.waitForSelector('#problem:not([hidden])');
    assert.match(await page.textContent('#problem-text'), new RegExp(`${path}.*SHA-256`));
    if (screenshots) await page.screenshot({ path: join(screenshots, 'desktop-tampered.png') });
  } finally {
    server.tampered.clear();
    await close(other);
  }
});
