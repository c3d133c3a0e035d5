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
    return {
      append: (piece) => {
        text += piece;
        const isAtEnd = this.#isAtEnd();
        shown.append(piece);
        if (isAtEnd) this.#scrollToEnd();
      },
      end: (note) => {
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
    return this.#log.parentElement;
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#view;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  #scrollToEnd() {
    this.#view.scrollTop = this.#view.scrollHeight;
  }
}
