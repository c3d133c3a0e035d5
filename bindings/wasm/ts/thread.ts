// A worker that computes for another: it runs the same module over the same memory, and what the model leaves for it there.

import { page } from './line.js';
import type { Compiled } from './module.js';
import { instantiate } from './module.js';
import { runThread } from './wasm/smolrun_wasm.js';

const line = await page();
line.listen((compiled) => {
  instantiate(compiled as Compiled);
  line.send('ready');
  setTimeout(runThread); // until the page ends this worker: a trap or a panic is an error that it is told of
});
