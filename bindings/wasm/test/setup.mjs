// What every test needs: where things are, a browser, and the native program to compare with.
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { chromium } from 'playwright-core';

function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run scripts/test_web.sh`);
  return value;
}

/** A folder that `scripts/build_web.sh` made. */
export const dist = required('SMOL_WEB_DIST');
/** tales-4m as f32. */
export const talesF32 = required('SMOL_TALES_F32');
/** The page's blobs, before they were cut into parts: tales-4m is of q4, the real model of q3. */
export const talesQ4 = required('SMOL_TALES_Q4');
export const realBlob = required('SMOL_REAL_BLOB');
/** The program `smolrun` of the same tree. */
const program = required('SMOLRUN');

/** A page with nothing on it. */
export const BLANK = fileURLToPath(new URL('./blank.html', import.meta.url));

export const real = 'smollm2-135m-instruct';
export const package_ = fileURLToPath(new URL('../', import.meta.url));

/** Under a loaded machine, and with a browser that compiles what it runs. */
export const PATIENCE_MS = Number(process.env.SMOL_PATIENCE_MS ?? 120_000);

const CHROMIUM = {
  executablePath: '/usr/bin/chromium',
  headless: true,
  args: [
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync',
  ],
};

/** A browser that keeps what it has in a folder, for as long as that is there. */
export function launch(userDataDir) {
  return chromium.launchPersistentContext(userDataDir, CHROMIUM);
}

/** A browser whose contexts have nothing in common, and keep nothing. */
export function launchForContexts() {
  return chromium.launch(CHROMIUM);
}

/** Opens a page for tests, with `Smol` in it, and `failure`: what the failure of some work says. */
export async function openBlank(context, server) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  await page.goto(`${server.url}/blank.html`);
  await page.evaluate(async () => {
    Object.assign(globalThis, await import('/smolrun/index.js'));
    globalThis.failure = (work) => work.then(() => undefined, ({ code, message, name }) => ({ code, message, name }));
  });
  return page;
}

/** What the native program prints for these arguments, with `input` at its standard input. */
export async function smolrun(args, input = '') {
  const running = promisify(execFile)(program, args, { maxBuffer: 1 << 28 });
  running.child.stdin.end(input || undefined); // to write nothing fails, too, where it has ended without reading
  return JSON.parse((await running).stdout);
}

/** The largest difference between two lists of numbers. */
export function distance(left, right) {
  if (left.length !== right.length) return Infinity;
  return left.reduce((most, x, i) => Math.max(most, Math.abs(x - right[i])), 0);
}
