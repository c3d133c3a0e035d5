#!/usr/bin/env node
// smolrun beside wllama and transformers.js, in headless Chromium, on the same weights with the nearest quantisation.
//
// usage: node scripts/peers/web/compare.mjs [--smolrun DIST] [--wllama MODEL.gguf] [--transformers ONNX_DIR]
//          [--threads 1,2] [--rounds 5] [--tokens 64] [--others 0.05] [--work DIR] [--json FILE]
//
// DIST          what scripts/build_web.sh makes
// MODEL.gguf    scripts/peers/safetensors_to_gguf.py, then llama.cpp's quantisation to Q4_0 (embedding: Q6_K or Q8_0)
// ONNX_DIR      scripts/peers/web/export_onnx.py
//
// Installs the peers from npm into --work, by default a folder for temporary files, and nothing of theirs anywhere else. Every round
// runs each peer with each number of threads, one after the other in an order that turns, so that all see the same moods of
// a shared machine: a first visit with an empty profile, then another by a new process with what the first one kept. Visits
// during which others took more than --others of the processors are made again, a few times. Prints medians as Markdown;
// --json keeps every run, and adds to what is there.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { rendererPeak, watchOthers } from './processes.mjs';
import { serve } from './server.mjs';
import { table } from './table.mjs';

const PACKAGES = ['@wllama/wllama@3.8.1', '@huggingface/transformers@4.3.1', 'playwright-core@1.65.1'];
const CHROMIUM = {
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  headless: true,
  args: [
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync',
  ],
};
/** Times that both visits are made where others are at work. */
const ATTEMPTS = 3;
/** Longest time for a page, in milliseconds. */
const PATIENCE = 300_000;

const { values: options } = parseArgs({
  options: {
    smolrun: { type: 'string' },
    wllama: { type: 'string' },
    transformers: { type: 'string' },
    threads: { type: 'string', default: '1,2' },
    rounds: { type: 'string', default: '5' },
    tokens: { type: 'string', default: '64' },
    others: { type: 'string', default: '0.05' },
    work: { type: 'string', default: join(tmpdir(), 'smolrun-web-peers') },
    json: { type: 'string' },
  },
});
const peers = ['smolrun', 'wllama', 'transformers'].filter((peer) => options[peer]);

const modules = install();
const { chromium } = createRequire(join(modules, 'here.js'))('playwright-core');
const server = await serve({
  '/peers/': fileURLToPath(new URL('pages/', import.meta.url)),
  '/wllama/': join(modules, '@wllama/wllama/esm/'),
  '/transformers/': join(modules, '@huggingface/transformers/dist/'),
  '/ort/': join(modules, 'onnxruntime-web/dist/'),
  ...(options.smolrun && { '/smolrun/': resolve(options.smolrun, '.') }),
  ...(options.wllama && { '/wllama-model.gguf': resolve(options.wllama) }),
  ...(options.transformers && { '/transformers-model/': resolve(options.transformers) }),
});
const runs = options.json && existsSync(options.json) ? JSON.parse(readFileSync(options.json, 'utf8')) : [];
try {
  const cases = options.threads.split(',').flatMap((threads) => peers.map((peer) => ({ peer, threads: Number(threads) })));
  for (let round = 0; round < Number(options.rounds); round += 1) {
    for (let i = 0; i < cases.length; i += 1) runs.push(...(await quietVisits(cases[(i + round) % cases.length])));
    if (options.json) writeFileSync(options.json, `${JSON.stringify(runs, null, 1)}\n`);
  }
} finally {
  server.close();
}
console.log(table(runs));

/** Visits while the machine is quiet, or else the last that were made. */
async function quietVisits(which) {
  for (let made = 1; ; made += 1) {
    const runs = await visits(which);
    if (made === ATTEMPTS || runs.every(({ others }) => others <= Number(options.others))) return runs;
  }
}

/** A first visit and a second one. */
async function visits({ peer, threads }) {
  const profile = await mkdtemp(join(tmpdir(), 'smolrun-web-'));
  try {
    const runs = [];
    for (const visit of ['first', 'cached']) {
      const run = { peer, threads, visit, ...(await measure(peer, threads, profile)) };
      const { ready, firstToken, tokensPerSecond, others, error } = run;
      const figures = [ready, firstToken, tokensPerSecond, 100 * others];
      console.error(peer, threads, visit, error ?? figures.map((x) => x.toFixed(1)).join(' '));
      runs.push(run);
    }
    return runs;
  } finally {
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

async function measure(peer, threads, profile) {
  const takenByOthers = await watchOthers();
  const browser = await chromium.launchPersistentContext(profile, CHROMIUM);
  try {
    const page = await browser.newPage();
    server.takeSent();
    await page.goto(`${server.url}/peers/index.html?peer=${peer}&threads=${threads}&tokens=${options.tokens}`);
    const result = await page.waitForFunction(() => globalThis.result, undefined, { timeout: PATIENCE });
    const [peak, others] = [await rendererPeak(profile), await takenByOthers(profile)];
    // What is kept for the next visit may still be on its way to the disk.
    await page.waitForTimeout(1000);
    return { ...(await result.jsonValue()), bytes: server.takeSent(), peak, others };
  } finally {
    await browser.close();
  }
}

/** Installs the peers, and returns where they are. */
function install() {
  const modules = join(options.work, 'node_modules');
  const wanted = join(options.work, 'installed.json');
  if (!existsSync(wanted) || readFileSync(wanted, 'utf8') !== JSON.stringify(PACKAGES)) {
    mkdirSync(options.work, { recursive: true });
    writeFileSync(join(options.work, 'package.json'), '{ "private": true }\n');
    // Without scripts: onnxruntime-node's would fetch a library that no browser needs.
    execFileSync('npm', ['install', '--ignore-scripts', '--no-audit', '--no-fund', ...PACKAGES], {
      cwd: options.work,
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    writeFileSync(wanted, JSON.stringify(PACKAGES));
  }
  return modules;
}
