// Runs as a table of medians.

const NAMES = { smolrun: 'smolrun', wllama: 'wllama', transformers: 'transformers.js' };

const COLUMNS = [
  ['first visit: first token, s', ({ first }) => seconds(first, 'firstToken')],
  ['from cache: ready, s', ({ cached }) => seconds(cached, 'ready')],
  ['from cache: first token, s', ({ cached }) => seconds(cached, 'firstToken')],
  ['decode, tok/s', ({ cached }) => median(cached, 'tokensPerSecond').toFixed(1)],
  ['downloaded, MB', ({ first }) => megabytes(first, 'bytes')],
  ['peak memory, MB', ({ cached }) => megabytes(cached, 'peak')],
];

/** Markdown, with a row for each peer and number of threads. */
export function table(runs) {
  const good = runs.filter(({ error }) => !error);
  const cases = [...new Set(good.map(({ peer, threads }) => `${peer} ${threads}`))].sort(byThreads);
  const rows = cases.map((name) => {
    const [peer, threads] = name.split(' ');
    const of = (visit) => good.filter((run) => run.visit === visit && run.peer === peer && run.threads === Number(threads));
    const visits = { first: of('first'), cached: of('cached') };
    return [NAMES[peer], threads, ...COLUMNS.map(([, cell]) => cell(visits))];
  });
  const head = ['', 'threads', ...COLUMNS.map(([name]) => name)];
  return [head, ['---', ...head.slice(1).map(() => '---:')], ...rows].map((row) => `| ${row.join(' | ')} |`).join('\n');
}

function byThreads(left, right) {
  const order = (name) => [Number(name.split(' ')[1]), Object.keys(NAMES).indexOf(name.split(' ')[0])];
  const [a, b] = [order(left), order(right)];
  return a[0] - b[0] || a[1] - b[1];
}

function median(runs, field) {
  const values = runs.map((run) => run[field]).sort((a, b) => a - b);
  const half = values.length >> 1;
  return values.length % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

const seconds = (runs, field) => (median(runs, field) / 1000).toFixed(2);
const megabytes = (runs, field) => (median(runs, field) / 1e6).toFixed(1);
