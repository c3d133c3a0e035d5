// The conversation: what was said, and how it is shown.
import { element } from './dom.js';

/** How near to its end the page must be for it to follow what is added, in pixels. */
const NEAR = 80;

export class Conversation {
  /** What the model is told, the last answer included as far as it has come. */
  messages = [];
  #log;

  constructor(log) {
    this.#log = log;
  }

  clear() {
    this.messages = [];
    this.#log.replaceChildren();
  }

  /** Shows a question, and returns the answer to be filled. */
  ask(text) {
    this.messages = [...this.messages, { role: 'user', content: text }];
    this.#add('user', 'You').textContent = text;
    const said = this.messages;
    return this.#answer('', (answer) => {
      // Of a conversation that was cleared in the meantime nothing is kept.
      if (this.messages === said && answer) this.messages = [...said, { role: 'assistant', content: answer }];
    });
  }

  /** Shows the beginning of a text, and returns the rest to be filled. */
  continue(text) {
    return this.#answer(text, () => undefined);
  }

  #answer(given, ended) {
    const shown = this.#add('assistant', 'Model');
    shown.item.setAttribute('aria-busy', 'true');
    if (given) shown.before(element('span', { className: 'given', textContent: given }));
    let text = '';
    // The line that is being written stands as it is; once it is whole, it is formatted.
    const line = document.createTextNode('');
    shown.append(line);
    const finishLines = (end) => {
      line.before(...formatted(line.data.slice(0, end)));
      line.data = line.data.slice(end);
    };
    return {
      append: (piece) => {
        text += piece;
        const isAtEnd = this.#isAtEnd();
        line.data += piece;
        finishLines(line.data.lastIndexOf('\n') + 1);
        if (isAtEnd) this.#scrollToEnd();
      },
      end: (note) => {
        finishLines(line.data.length);
        shown.item.removeAttribute('aria-busy');
        if (note) shown.item.append(element('span', { className: 'note', textContent: note }));
        this.#scrollToEnd();
        ended(text);
      },
    };
  }

  #add(role, speaker) {
    const item = element('li', { className: role });
    const text = element('span', { className: 'text' });
    item.append(element('span', { className: 'hidden', textContent: `${speaker}: ` }), text);
    text.item = item;
    this.#log.append(item);
    this.#scrollToEnd();
    return text;
  }

  get #view() {
    return this.#log.closest('main');
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#view;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  #scrollToEnd() {
    this.#view.scrollTop = this.#view.scrollHeight;
  }
}

/** The little Markdown that small models like to write: **bold** and `code`. */
function formatted(text) {
  return text.split(/(\*\*[^*\n]+\*\*|`[^`\n]+`)/).map((piece, i) => {
    if (i % 2 === 0) return piece;
    if (piece.startsWith('`')) return element('code', { textContent: piece.slice(1, -1) });
    return element('strong', { textContent: piece.slice(2, -2) });
  });
}
