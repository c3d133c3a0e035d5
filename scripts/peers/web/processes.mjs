// What a browser's processes take, and what others take meanwhile, as Linux tells it.
import { readdir, readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';

/** Of Linux's clock that processes are charged by. */
const TICKS_PER_SECOND = 100;

/** The peak resident memory, in bytes, of the largest renderer process of the browser that runs on this profile. */
export async function rendererPeak(profile) {
  const renderers = (await family(profile)).filter(({ command }) => command.includes('--type=renderer'));
  return Math.max(0, ...renderers.map(({ peak }) => peak));
}

/** Begins to watch; what it returns tells the share of all processors that neither we nor the browser on `profile` took. */
export async function watchOthers() {
  const [start, busy, own] = [performance.now(), await busySeconds(), ownSeconds()];
  return async (profile) => {
    const browser = (await family(profile)).reduce((sum, { seconds }) => sum + seconds, 0);
    const others = (await busySeconds()) - busy - (ownSeconds() - own) - browser;
    return Math.max(0, others) / (((performance.now() - start) / 1000) * availableParallelism());
  };
}

async function family(profile) {
  const names = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const found = (await Promise.all(names.map(look))).filter(Boolean);
  const ids = new Set(found.filter(({ command }) => command.includes(`--user-data-dir=${profile}`)).map(({ id }) => id));
  for (let before = 0; before !== ids.size; ) {
    before = ids.size;
    for (const { id, parent } of found) if (ids.has(parent)) ids.add(id);
  }
  return found.filter(({ id }) => ids.has(id));
}

async function look(name) {
  try {
    const [command, status, stat] = await Promise.all(
      ['cmdline', 'status', 'stat'].map((file) => readFile(`/proc/${name}/${file}`, 'utf8')),
    );
    const number = (field) => Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
    const [user, system] = stat.slice(stat.lastIndexOf(')')).split(' ').slice(12, 14).map(Number);
    const seconds = (user + system) / TICKS_PER_SECOND;
    return { id: Number(name), parent: number('PPid'), command, peak: number('VmHWM') * 1024, seconds };
  } catch {
    return undefined; // it has ended
  }
}

/** Seconds that all processors together have worked, or were kept from us by the host. */
async function busySeconds() {
  const [user, nice, system, , , interrupts, softInterrupts, stolen] = (await readFile('/proc/stat', 'utf8'))
    .split('\n')[0]
    .split(/ +/)
    .slice(1)
    .map(Number);
  return (user + nice + system + interrupts + softInterrupts + stolen) / TICKS_PER_SECOND;
}

function ownSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}
