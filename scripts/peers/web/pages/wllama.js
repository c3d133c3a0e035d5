// wllama: llama.cpp in WebAssembly, without a GPU.
import { LoggerWithoutDebug, Wllama } from '/wllama/index.js';

export async function load(threads) {
  const wllama = new Wllama({ default: '/wllama/wasm/wllama.wasm' }, { suppressNativeLog: true, logger: LoggerWithoutDebug });
  await wllama.loadModelFromUrl(`${location.origin}/wllama-model.gguf`, { n_threads: threads, n_ctx: 1024, n_gpu_layers: 0 });
  return {
    threads: wllama.getNumThreads(),
    async generate(prompt, tokens) {
      const times = [];
      let text = '';
      const chunks = await wllama.createCompletion({ prompt, max_tokens: tokens, temperature: 0, stream: true });
      for await (const { choices } of chunks) {
        const piece = choices[0]?.text ?? '';
        if (!piece) continue; // the last one says why it ended
        times.push(performance.now());
        text += piece;
      }
      return { times, text };
    },
  };
}
