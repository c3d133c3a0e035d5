// What callers see of a model.

/** What is known of a model. */
export interface ModelInfo {
  /** By the manifest. */
  readonly name?: string;
  readonly version?: string;
  readonly architecture?: string;
  readonly licence?: string;
  /** Numbers that were trained. */
  readonly parameters: number;
  /** How matrices are stored, such as `q4` or `q6+q5+q4`. */
  readonly quantisation: string;
  /** Of the blob, which is in memory as it is. */
  readonly bytes: number;
  readonly layers: number;
  readonly hiddenSize: number;
  readonly vocabSize: number;
  /** Most tokens of a sequence. */
  readonly contextLength: number;
  readonly eosTokenIds: readonly number[];
  readonly hasChatTemplate: boolean;
  readonly threads: number;
  readonly kernels: string;
  /** The build that runs: with relaxed SIMD or without. */
  readonly build: 'relaxed' | 'simd';
  /** Whether its numbers are, bit for bit, those of every other machine. */
  readonly isExact: boolean;
}

export interface Progress {
  /** Bytes of the blob that are in place. */
  readonly loaded: number;
  /** Bytes of the blob; 0 while that is not known. */
  readonly total: number;
  /** How many of `loaded` needed no network. */
  readonly cached: number;
}

export interface LoadOptions {
  onProgress?: (progress: Progress) => void;
  /**
   * Threads to compute with; if not given, as many as there are processors, up to 4, or 1 where there can be no more. To ask
   * for more there is an error: `NOT_ISOLATED` on a page that is not cross-origin isolated, `BAD_ARGUMENT` in Node before 22.
   * The result does not depend on it.
   */
  threads?: number;
  signal?: AbortSignal;
  /** Whether parts of a manifest are kept for the next visit; true unless told otherwise. */
  cache?: boolean;
}

export interface Message {
  /** `system`, `user` or `assistant`, or what else the model's chat template knows. */
  readonly role: string;
  readonly content: string;
}

export interface GenerateOptions {
  /** Most tokens to generate; 256 if not given. */
  maxTokens?: number;
  /** Logits are divided by this; 0, if not given, always takes the likeliest token. */
  temperature?: number;
  /** Draw from so many of the likeliest tokens only; 0, if not given, for all. */
  topK?: number;
  /** Draw from the likeliest tokens that together reach this probability; 1, if not given, for all. */
  topP?: number;
  /** Draw from tokens at least this fraction as likely as the likeliest; 0, if not given, for all. */
  minP?: number;
  /** Logits of tokens that were there are divided by this where positive, else multiplied; 1, if not given, for none. */
  repetitionPenalty?: number;
  /** Decides every draw, on every machine the same; 0 if not given. */
  seed?: number;
  /** Texts that end the generation and are not part of it. */
  stop?: string[];
  signal?: AbortSignal;
}

/** `eos`: the model ended; `stop`: a stop text came; `length`: `maxTokens`; `context`: the context is full. */
export type FinishReason = 'eos' | 'stop' | 'length' | 'context';

/** What a generation has cost so far. */
export interface GenerationStats {
  promptTokens: number;
  /** How many of the prompt's tokens the model still had from before. */
  keptTokens: number;
  tokens: number;
  /** From the call to the first token. */
  firstTokenMs: number;
  /** From the first token to the last one so far. */
  decodeMs: number;
  /** Of the module: the weights, the keys and values, and what else it needs. */
  memoryBytes: number;
}
