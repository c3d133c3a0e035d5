// A smoke test in Firefox, which nothing drives: a page does it all by itself, and posts what came of it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { dist, PATIENCE_MS, real, settles, smolrun, talesQ4, test } from './setup.mjs';
import { serve } from './server.mjs';

test('Firefox loads, answers, stops, and loads again from its cache', async () => {
  const smoke = new URL('./smoke.html', import.meta.url).pathname;
  const server = await serve(dist, { '/smoke.html': smoke }, { isIsolated: true });
  const profile = await mkdtemp(join(tmpdir(), 'smolrun-firefox-'));
  const address = `${server.url}/smoke.html?real=${real}`;
  const firefox = spawn('firefox-esr', ['--headless', '--no-remote', '--profile', profile, address], { stdio: 'ignore' });
  const ended = new Promise((resolve) => firefox.once('close', resolve));
  try {
    const report = await reported(server, 3 * PATIENCE_MS);
    assert.equal(report.error, undefined);
    assert.match(report.answer, /Paris/);
    assert.equal(report.stopped, 'ABORTED');
    assert.equal(report.cached, report.total);
    const native = await smolrun([talesQ4, 'Once upon a time', '-n', '24', '--json']);
    if (report.isExact) assert.deepEqual(report.ids, native.ids);
    assert.equal(report.threads, Math.min(availableParallelism(), 4));
    console.log(`# Firefox: ${report.build}, ${report.threads} threads, ${report.agent}`);
  } finally {
    firefox.kill();
    if (!(await settles(ended, 10_000))) firefox.kill('SIGKILL');
    await ended;
    server.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
});

async function reported(server, patience) {
  const end = Date.now() + patience;
  while (server.reports.length === 0) {
    assert.ok(Date.now() < end, `no report; it fetched ${server.fetched.slice(-5)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return server.reports[0];
}
