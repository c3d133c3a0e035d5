// What a browser's processes take, as Linux tells it.
import { readdir, readFile } from 'node:fs/promises';

/** The peak resident memory, in bytes, of the largest renderer process of the browser that runs on this profile. */
export async function rendererPeak(profile) {
  const processes = await Promise.all((await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(look));
  const found = processes.filter(Boolean);
  const family = new Set(found.filter(({ command }) => command.includes(`--user-data-dir=${profile}`)).map(({ id }) => id));
  for (let before = 0; before !== family.size; ) {
    before = family.size;
    for (const { id, parent } of found) if (family.has(parent)) family.add(id);
  }
  const renderers = found.filter(({ id, command }) => family.has(id) && command.includes('--type=renderer'));
  return Math.max(0, ...renderers.map(({ peak }) => peak));
}

async function look(name) {
  try {
    const command = await readFile(`/proc/${name}/cmdline`, 'utf8');
    const status = await readFile(`/proc/${name}/status`, 'utf8');
    const number = (field) => Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
    return { id: Number(name), parent: number('PPid'), command, peak: number('VmHWM') * 1024 };
  } catch {
    return undefined; // it has ended
  }
}
