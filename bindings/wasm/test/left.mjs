// Ends what a run of the tests has left behind: all processes that have its name in their environment.
// usage: node left.mjs RUN
import { readdir, readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

/** Kills the processes of `run` but for this one and those that it is part of, and says what they were. */
export async function endLeft(run) {
  const own = await ancestors();
  const names = [];
  for (const entry of await readdir('/proc')) {
    const pid = Number(entry);
    if (!pid || own.has(pid) || !(await isOf(run, pid))) continue;
    names.push(await nameOf(pid));
    try {
      process.kill(pid, 'SIGKILL');
    } catch {
      // it has ended in the meantime
    }
  }
  return names;
}

async function isOf(run, pid) {
  const environment = await read(pid, 'environ');
  return environment.split('\0').includes(`SMOL_TEST_RUN=${run}`);
}

async function nameOf(pid) {
  return (await read(pid, 'cmdline')).split('\0', 1)[0];
}

async function ancestors() {
  const pids = new Set();
  for (let pid = process.pid; pid > 0; ) {
    pids.add(pid);
    const parent = /^PPid:\s*(\d+)$/m.exec(await read(pid, 'status'));
    pid = Number(parent?.[1] ?? 0);
  }
  return pids;
}

/** A file of a process; nothing where that has ended, or is another user's. */
function read(pid, name) {
  return readFile(`/proc/${pid}/${name}`, 'utf8').catch(() => '');
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const names = await endLeft(process.argv[2]);
  if (names.length > 0) console.error(`left behind, and killed: ${names.join(', ')}`);
}
