// smolrun: the package as scripts/build_web.sh makes it.
import { Smol } from '/smolrun/smolrun/index.js';

export async function load(threads) {
  const model = await Smol.load('/smolrun/models/smollm2-135m-instruct/manifest.json', { threads });
  return {
    threads: model.info.threads,
    async generate(prompt, maxTokens) {
      const times = [];
      let text = '';
      for await (const piece of model.generate(prompt, { maxTokens })) {
        times.push(performance.now());
        text += piece;
      }
      return { times, text };
    },
  };
}
