// What every test needs: where things are, a browser, and the native program to compare with.
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { dirname, join } from 'node:path';
import * as runner from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { chromium } from 'playwright-core';
import { endLeft } from './left.mjs';

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

/** What is started from here on has it in its environment, and can be told by it. */
const run = (process.env.SMOL_TEST_RUN ??= randomUUID());

// Node's tests and hooks wait for ever: these have a limit, so that what hangs is a failure with a name.
const timeout = 4 * PATIENCE_MS;
export const test = (name, work) => runner.test(name, { timeout }, work);
export const before = (work) => runner.before(work, { timeout });
export const beforeEach = (work) => runner.beforeEach(work, { timeout });
export const after = (work) => runner.after(work, { timeout });

const CHROMIUM = {
  executablePath: '/usr/bin/chromium',
  headless: true,
  timeout: PATIENCE_MS,
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
export function launchForContexts(...flags) {
  return chromium.launch({ ...CHROMIUM, args: [...CHROMIUM.args, ...flags] });
}

/** Closes a browser or what it has open; where that takes too long, all that this test has started ends. */
export async function close(closable) {
  const isClosed = await settles(closable.close(), PATIENCE_MS);
  if (isClosed) return;
  await endLeft(run);
  throw new Error(`a browser did not close within ${PATIENCE_MS} ms, and was killed`);
}

/** Whether `work` is done within so many milliseconds. */
export async function settles(work, ms) {
  let timer;
  const over = new Promise((resolve) => (timer = setTimeout(resolve, ms, false)));
  try {
    return await Promise.race([work.then(() => true), over]);
  } finally {
    clearTimeout(timer);
  }
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
  return JSON.parse((await execute(program, args, input)).stdout);
}

/** The blob that the converter of the same tree makes of a folder, or what it says against it. */
export async function convert(folder) {
  await execute(join(dirname(program), 'smolconv'), [folder, '-o', `${folder}.bin`, '--quiet']);
  return `${folder}.bin`;
}

/** Runs a program, and kills it where it does not end in time. */
export async function execute(program, args, input = '') {
  const options = { maxBuffer: 1 << 28, timeout: 2 * PATIENCE_MS, killSignal: 'SIGKILL' };
  const running = promisify(execFile)(program, args, options);
  running.child.stdin.end(input || undefined); // to write nothing fails, too, where it has ended without reading
  try {
    return await running;
  } catch (error) {
    if (error.killed) error.message = `no end within ${options.timeout} ms: ${error.message}`;
    throw error;
  }
}

/** The largest difference between two lists of numbers. */
export function distance(left, right) {
  if (left.length !== right.length) return Infinity;
  return left.reduce((most, x, i) => Math.max(most, Math.abs(x - right[i])), 0);
}
