// Runs a wasm32-wasip1 program in Node, for cargo: CARGO_TARGET_WASM32_WASIP1_RUNNER="node scripts/run_wasi.mjs".
// The program may read the folder in which it is started.
import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const [program, ...args] = process.argv.slice(2);
const wasi = new WASI({
  version: 'preview1',
  args: [program, ...args],
  env: process.env,
  preopens: { '/': '/' },
});
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
