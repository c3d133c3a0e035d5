// A text by a model: node example.mjs smol.bin "Hello"
import { Smol } from './lib/index.js';

const [source, prompt = 'Once upon a time'] = process.argv.slice(2);
if (!source) {
  console.error('usage: node example.mjs BLOB_OR_MANIFEST [PROMPT]');
  process.exit(2);
}

const model = await Smol.load(source);
try {
  // A chat model answers; any other continues the text.
  const input = model.info.hasChatTemplate ? [{ role: 'user', content: prompt }] : prompt;
  const generation = model.generate(input, { maxTokens: 200, temperature: 0.7, topP: 0.9, seed: 1 });
  for await (const piece of generation) process.stdout.write(piece);
  const { tokens, firstTokenMs, decodeMs } = generation.stats;
  const speed = ((tokens - 1) / decodeMs) * 1000;
  console.error(`\n(${tokens} tokens, the first after ${firstTokenMs.toFixed()} ms, then ${speed.toFixed(1)} a second)`);
} finally {
  model.close();
}
