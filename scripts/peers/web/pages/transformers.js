// transformers.js: ONNX Runtime in WebAssembly.
import { env, pipeline, TextStreamer } from '/transformers/transformers.min.js';

export async function load(threads) {
  env.allowLocalModels = false; // what is not "remote" would not be kept for the next visit
  env.remoteHost = location.origin;
  env.remotePathTemplate = '{model}/';
  env.backends.onnx.wasm.wasmPaths = '/ort/';
  env.backends.onnx.wasm.numThreads = threads;
  const generator = await pipeline('text-generation', 'transformers-model', { dtype: 'q4', device: 'wasm' });
  return {
    threads: env.backends.onnx.wasm.numThreads,
    async generate(prompt, tokens) {
      const times = [];
      const streamer = new TextStreamer(generator.tokenizer, {
        skip_prompt: true,
        callback_function: () => undefined,
        token_callback_function: () => times.push(performance.now()),
      });
      const options = { max_new_tokens: tokens, do_sample: false, repetition_penalty: 1, return_full_text: false, streamer };
      const [{ generated_text: text }] = await generator(prompt, options);
      return { times, text };
    },
  };
}
