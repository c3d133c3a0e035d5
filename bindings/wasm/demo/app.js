// The demo: a conversation with a model that runs in this page.
import { Smol } from './smolrun/index.js';
import { Conversation } from './conversation.js';
import { element, megabytes, seconds } from './dom.js';

/** What to offer, by what the model does. */
const KINDS = {
  chat: {
    about: 'Ask it something. It is small, quick and often wrong, and what you write never leaves this device.',
    placeholder: 'Ask something',
    temperature: 0.3,
    length: 384,
    ideas: [
      'What is the capital of France?',
      'Explain to a child why the sky is blue.',
      'Write a haiku about a lighthouse.',
      'Give me three ideas for a rainy afternoon.',
    ],
  },
  story: {
    about: 'Begin a fairy tale and it goes on, badly and cheerfully. It learned from old books, and nothing else.',
    placeholder: 'Begin a fairy tale',
    temperature: 0.7,
    length: 192,
    ideas: [
      'Once upon a time',
      'The old king said to his youngest son',
      'Deep in the forest there lived a fox who',
      'There was once a poor tailor',
    ],
  },
};

const page = Object.fromEntries(
  [
    'about', 'bar', 'clear', 'form', 'ideas', 'length', 'length-value', 'loading', 'loading-text', 'log', 'model',
    'problem', 'problem-text', 'progress', 'prompt', 'retry', 'send', 'send-text', 'settings', 'stats', 'status',
    'temperature', 'temperature-value', 'theme', 'welcome',
  ].map((id) => [id, document.getElementById(id)]),
);
const conversation = new Conversation(page.log);

/** The models there are, the one that was chosen, its loading, and what stops the answer that is being given. */
let models = [];
let chosen;
let loading;
let answering;

page.form.addEventListener('submit', (event) => {
  event.preventDefault();
  if (answering) answering.abort();
  else void send(page.prompt.value);
});
page.prompt.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!answering) page.form.requestSubmit();
});
page.prompt.addEventListener('input', showSend);
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  if (page.settings.open) page.settings.open = false;
  else answering?.abort();
});
document.addEventListener('click', (event) => {
  if (!page.settings.contains(event.target)) page.settings.open = false;
});
page.model.addEventListener('change', () => choose(page.model.value));
page.retry.addEventListener('click', () => (chosen ? choose(chosen.id) : void begin()));
page.clear.addEventListener('click', () => {
  clear();
  page.prompt.focus();
});
page.theme.addEventListener('click', switchTheme);
for (const name of ['temperature', 'length']) page[name].addEventListener('input', showSettings);
if ('serviceWorker' in navigator) void navigator.serviceWorker.register('sw.js').catch(() => undefined);
void begin();

async function begin() {
  page.problem.hidden = true;
  try {
    const response = await fetch('models/index.json');
    if (!response.ok) throw new Error(`models/index.json: the server answered ${response.status}`);
    models = await response.json();
  } catch (error) {
    return showProblem(error);
  }
  page.model.replaceChildren(
    ...models.map(({ id, name, bytes }) => new Option(`${name} · ${megabytes(bytes)}`, id)),
  );
  const last = models.find(({ id }) => id === localStorage.getItem('model')) ?? models[0];
  page.model.value = last.id;
  choose(last.id);
}

/** Loads a model in place of the one before it, and begins a new conversation. */
function choose(id) {
  clear();
  loading?.abort.abort();
  void loading?.model.then((model) => model.close()).catch(() => undefined);
  chosen = models.find((model) => model.id === id);
  localStorage.setItem('model', id);
  offer(KINDS[chosen.kind]);
  page.problem.hidden = true;
  page.stats.textContent = '';
  const abort = new AbortController();
  loading = { abort, model: load(chosen, abort.signal) };
}

async function load({ manifest, name }, signal) {
  const start = performance.now();
  page.loading.hidden = false;
  showProgress({ loaded: 0, total: 0 });
  try {
    const model = await Smol.load(new URL(`models/${manifest}`, location.href), { signal, onProgress: showProgress });
    page.loading.hidden = true;
    say(`${name} is ready.`);
    page.stats.textContent = `ready in ${seconds(performance.now() - start)} · ${threads(model.info)}`;
    document.documentElement.dataset.ready = name; // for those who drive the page
    return model;
  } catch (error) {
    if (!signal.aborted) showProblem(error);
    throw error;
  } finally {
    if (!signal.aborted) page.loading.hidden = true;
  }
}

async function send(text) {
  text = text.trim();
  if (!text || answering || !loading) return;
  page.prompt.value = '';
  page.welcome.hidden = true;
  const stop = (answering = new AbortController());
  showSend();
  const isChat = chosen.kind === 'chat';
  const answer = isChat ? conversation.ask(text) : conversation.continue(text);
  try {
    const model = await loading.model;
    const generation = model.generate(isChat ? conversation.messages : text, options(stop.signal));
    for await (const piece of generation) {
      answer.append(piece);
      showStats(generation.stats);
    }
    answer.end({ length: 'It stopped at the longest answer of the settings.', context: 'The context is full.' }[
      generation.finishReason
    ]);
  } catch (error) {
    const isStopped = error.code === 'ABORTED' || error.code === 'CLOSED';
    answer.end(isStopped ? 'Stopped.' : undefined);
    if (!isStopped) showProblem(error);
  } finally {
    if (answering === stop) answering = undefined;
    showSend();
  }
}

function options(signal) {
  const temperature = Number(page.temperature.value);
  const seed = crypto.getRandomValues(new Uint32Array(1))[0];
  return { signal, seed, temperature, maxTokens: Number(page.length.value), topP: 0.9 };
}

function clear() {
  answering?.abort();
  conversation.clear();
  page.welcome.hidden = false;
}

/** Shows what a kind of model is good for. */
function offer({ about, ideas, placeholder, temperature, length }) {
  page.about.textContent = about;
  page.prompt.placeholder = placeholder;
  page.temperature.value = temperature;
  page.length.value = length;
  showSettings();
  page.ideas.replaceChildren(
    ...ideas.map((idea) => {
      const button = element('button', { type: 'button', textContent: idea });
      button.addEventListener('click', () => void send(idea));
      const item = element('li');
      item.append(button);
      return item;
    }),
  );
}

function showSend() {
  page.send.classList.toggle('stop', Boolean(answering));
  page['send-text'].textContent = answering ? 'Stop' : 'Send';
  page.send.disabled = !answering && page.prompt.value.trim() === '';
}

function showSettings() {
  page['temperature-value'].value = Number(page.temperature.value).toFixed(1);
  page['length-value'].value = `${page.length.value} tokens`;
}

function showProgress({ loaded, total, cached = 0 }) {
  if (total === 0) {
    page.progress.removeAttribute('value');
    page['loading-text'].textContent = 'Loading';
    return;
  }
  page.progress.value = loaded / total;
  const from = cached === loaded ? 'from this device' : `of ${megabytes(total)}`;
  page['loading-text'].textContent = `${megabytes(loaded)} ${from}`;
}

function showStats({ tokens, decodeMs, firstTokenMs, memoryBytes }) {
  const speed = tokens > 1 ? `${(((tokens - 1) / decodeMs) * 1000).toFixed()} tokens/s · ` : '';
  page.stats.textContent = `${speed}first after ${seconds(firstTokenMs)} · ${megabytes(memoryBytes)} of memory`;
}

function showProblem(error) {
  page['problem-text'].textContent = error.message;
  page.problem.hidden = false;
  page.problem.dataset.code = error.code ?? '';
}

function threads({ threads }) {
  return threads === 1 ? '1 thread' : `${threads} threads`;
}

/** Tells those who listen to the page rather than look at it. */
function say(text) {
  page.status.textContent = text;
}

function switchTheme() {
  const isDark = matchMedia('(prefers-color-scheme: dark)').matches;
  const now = document.documentElement.dataset.theme ?? (isDark ? 'dark' : 'light');
  const next = now === 'dark' ? 'light' : 'dark';
  document.documentElement.dataset.theme = next;
  localStorage.setItem('theme', next);
}
