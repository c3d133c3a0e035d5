//! The command line.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use smolrun::engine::Engine;
use smolrun::{KvDtype, Overflow};

use crate::cache::CacheCommand;
use crate::model::{DtypeArgs, ModelArgs};
use crate::numbers::{count, count_from_1};
use crate::sampling::SamplingArgs;
use crate::shard::Shard;

/// Runs a small language model from one mapped file.
///
/// MODEL is such a file, a blob, or what becomes one: a checkpoint's directory, a GGUF file, a registered name, or the
/// id of a model on the Hugging Face hub. smolrun fetches it if it has to, and converts it once, into a cache.
///
/// The continuation goes to standard output as it is generated. Everything else goes to standard error.
#[derive(Debug, Parser)]
#[command(
    name = "smolrun",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  smolrun tales.bin \"Once upon a time\" --temperature 0.7 --top-p 0.9 --seed 1
  smolrun smol.bin Once upon a time
  smolrun smollm2-135m-instruct --chat \"What is the capital of France?\"
  smolrun Qwen/Qwen3-0.6B --dtype q8
  smolrun models/tales-4m \"Once upon a time\"
  smolrun model.gguf \"Once upon a time\"
  smolrun smol.bin
  smolrun smol.bin --chat \"What is the capital of France?\"
  smolrun smol.bin --chat \"Sum this up:\" < report.txt
  smolrun smol.bin --chat \"How is the weather in Rome?\" --tools tools.json
  smolrun smol.bin --json -n 16 - < prompt.txt
  echo '\"Hello\"' | smolrun tokenize smol.bin
  smolrun batch smol.bin requests.jsonl -o results.jsonl
  smolrun bench smol.bin -p 512 -n 128 --threads 2
  smolrun perplexity smol.bin book.txt
  smolrun bundle smol.bin -o chat
  smolrun cache list
  smolrun completions bash > ~/.local/share/bash-completion/completions/smolrun

Exit codes:
  0    done
  1    an error
  2    wrong usage
  129  hung up
  130  interrupted
  143  terminated

Environment:
  SMOLRUN_CACHE=DIRECTORY  Keeps converted models there [default: smolrun in XDG_CACHE_HOME or ~/.cache]
  HF_HOME, HF_ENDPOINT, HF_TOKEN  Mean what they do to Hugging Face's own tools
  SMOLRUN_ISA=NAME         Forces an instruction set: scalar, avx2, avxvnni, avx512, avx512vnni, avx512amx, neon,
                           neondotprod or neoni8mm
  SMOLRUN_HISTORY=FILE     Keeps the lines of conversations in FILE; if empty, nowhere"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Encode texts: reads a JSON string per line of standard input, prints an array of ids per line.
    Tokenize {
        #[command(flatten)]
        model: ModelArgs,
        /// Parse control tokens such as <|im_start|> in the text.
        #[arg(long)]
        special: bool,
    },
    /// Decode ids: reads an array of ids per line of standard input, prints a JSON string per line.
    Detokenize {
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Print the logits after some tokens as a JSON array.
    Logits {
        #[command(flatten)]
        model: ModelArgs,
        /// Token ids, separated by commas.
        #[arg(long, value_delimiter = ',', required = true, value_name = "ID,ID,...")]
        ids: Vec<u32>,
        /// Threads to compute with [default: as many as the process may use].
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
    },
    /// Score continuations: reads a JSON object per line of standard input, prints one with the scores per line.
    ///
    /// In: {"context": "2 + 2 =", "continuations": [" 4", " 5"]}. Out: {"scores": [{"logprob": the sum of the tokens'
    /// log-probabilities, "tokens": how many were scored, "is_greedy": whether each was the most likely}, ...]}.
    ///
    /// Control tokens in the texts are treated as text. If a continuation merges into the context's last token, it is
    /// scored from that token on. A continuation without any token is an error.
    Score {
        #[command(flatten)]
        model: ModelArgs,
        /// Threads to compute with [default: as many as the process may use].
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
    },
    /// Make vectors of texts: reads a JSON string per line of standard input, prints an object with its embedding per
    /// line.
    ///
    /// Out: {"embedding": [the model's last hidden state, after its final norm], "tokens": how many went through the
    /// model}. Control tokens in the texts are treated as text. An empty text is the token that begins a prompt.
    Embed {
        #[command(flatten)]
        model: ModelArgs,
        /// Which hidden state: that of the last token, or the mean of all tokens'.
        #[arg(long, value_enum, default_value = "last")]
        pooling: Pooling,
        /// Threads to compute with [default: as many as the process may use].
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
    },
    /// Measure how well a model predicts a text: its perplexity, and how far it is from another blob's model.
    ///
    /// The text is encoded as a whole, with control tokens as text. It is then cut into windows that do not overlap;
    /// the rest at its end is dropped. Each window is a sequence of its own. All its tokens but the first are scored.
    Perplexity(PerplexityArgs),
    /// Answer many requests at once: reads a JSON object per line of IN, writes one with the answer per line of OUT.
    ///
    /// In: {"custom_id": "a", "prompt": "Once upon a time"}, or {"custom_id": "b", "messages": [{"role": "user",
    /// "content": "Hello"}]}, beside these any option by its name in the API. OpenAI's batch lines, {"custom_id": ...,
    /// "method": "POST", "url": "/v1/chat/completions", "body": {...}}, work as they are.
    ///
    /// Out: {"line": 1, "custom_id": "a", "text": ..., "ids": [...], "finish_reason": ..., "usage": {...}}, or {"line": 1,
    /// "custom_id": "a", "error": {"code": ..., "message": ...}}.
    ///
    /// A batch that was stopped, or killed, goes on where it was when the same command is given again. The results are
    /// the same bytes then. They depend on nothing but the model and the request: neither on the other requests nor on
    /// the number of threads.
    ///
    /// Sampling options are for lines that do not give their own. A line without a seed draws with --seed plus its number;
    /// --seed is 0 by default, for messages, too.
    Batch(Box<BatchArgs>),
    /// Show what a blob holds, how much memory it needs, and what this machine has.
    Info {
        #[command(flatten)]
        model: ModelArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Measure prefill and decode beside this machine's read bandwidth and multiply-add peak.
    Bench(BenchArgs),
    /// Make one file of this program and a model, which runs by itself: ./chat "Hello".
    ///
    /// A model with a chat template answers, any other continues the text. The file needs Linux and this program's kind of
    /// processor, and nothing else if this program is static. The model is mapped where it lies, as a blob is.
    Bundle(BundleArgs),
    /// Show the models that were converted, and remove them.
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Print completions for a shell to standard output.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write man pages to a directory, which is created if necessary.
    Man {
        /// The directory.
        directory: PathBuf,
    },
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  smolrun perplexity smol.bin book.txt
  smolrun perplexity small.bin book.txt --against smol.bin --json
  smolrun perplexity smollm2-135m book.txt --dtype q8 --against smollm2-135m
  head -c 100000 book.txt | smolrun perplexity smol.bin -")]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// A file of text in UTF-8; "-" reads it from standard input.
    pub(crate) text: PathBuf,
    /// Compare with this reference model: Kullback-Leibler divergence from it, and how often both find the same token
    /// most likely. It must have the same tokenizer. A model that is no blob is taken without --dtype.
    #[arg(long, value_name = "MODEL2")]
    pub(crate) against: Option<PathBuf>,
    /// Tokens per window.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub(crate) window: usize,
    /// How MODEL keeps keys and values [default: f16 for quantized blobs, else f32].
    #[arg(long, value_enum)]
    pub(crate) kv: Option<Kv>,
    /// Threads to compute with [default: as many as the process may use].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  smolrun batch smol.bin requests.jsonl -o results.jsonl
  smolrun batch smol.bin requests.jsonl -o results.jsonl -n 100 --temperature 0.7 --seed 1
  smolrun batch smol.bin requests.jsonl -o results.2.jsonl --shard 2/4
  cat results.1.jsonl results.2.jsonl results.3.jsonl results.4.jsonl > results.jsonl

Fields of a request, which needs either prompt or messages:
  prompt                 A text to continue, or an array of token ids
  messages, tools        A conversation, which the chat template renders, and the tools it may call
  tool_choice            \"none\", so that the model is told of no tools, or \"auto\"
  custom_id              A text that the result repeats
  max_tokens             Most tokens to generate; also max_completion_tokens
  stop                   A text, or an array of texts, that ends the answer
  temperature, top_p, top_k, min_p, typical_p, repetition_penalty, frequency_penalty, presence_penalty,
  penalty_window, logit_bias, ignore_eos, seed
                         As the options of the same names
  logprobs, top_logprobs As in OpenAI's API
  priority               From -128 to 127; higher goes first
  model, user, metadata, store, service_tier, safety_identifier, prompt_cache_key, stream_options
                         Ignored: they do not change the answer

Any other field makes the line's result an error, unless it asks for what happens anyway, such as \"n\": 1.")]
#[command(mut_arg("seed", |seed| seed.help("A number, which decides every draw [default: 0]")))]
pub(crate) struct BatchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The requests: a file of JSON Lines. Empty lines are passed over; a line has at most 16 MB.
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// The file to write. OUT.job, beside it, says which batch it belongs to.
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Write results as they come instead of in the order of IN.
    #[arg(long)]
    pub(crate) unordered: bool,
    /// Answer part I of N of the lines, for N machines: the parts' results one after the other are those of the whole.
    #[arg(long, value_name = "I/N", default_value_t)]
    pub(crate) shard: Shard,
    /// Begin anew, whatever OUT holds.
    #[arg(long)]
    pub(crate) force: bool,
    /// Most requests at the same time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = sequences)]
    pub(crate) sequences: usize,
    /// Most megabytes of keys and values that the requests take at the same time [default: no limit].
    #[arg(long, value_name = "MB", value_parser = count_from_1)]
    pub(crate) kv_memory: Option<usize>,
    /// Megabytes of keys and values that are kept for prompts that begin alike.
    #[arg(long, value_name = "MB", value_parser = count, default_value_t = 256)]
    pub(crate) prefix_memory: usize,
    /// Threads to compute with [default: as many as the process may use]; the results do not depend on it.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// How keys and values are kept [default: f16 for quantized blobs, else f32].
    #[arg(long, value_enum)]
    pub(crate) kv: Option<Kv>,
    /// For lines that say nothing of these. Where a line has no seed, its number is added to --seed.
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens in the prompt (pp); 0 skips this measurement.
    #[arg(short, long, default_value_t = 512, value_name = "N")]
    pub(crate) prompt: usize,
    /// Tokens to generate (tg); 0 skips this measurement.
    #[arg(short = 'n', long, default_value_t = 128, value_name = "N")]
    pub(crate) tokens: usize,
    /// Tokens in the context before each measurement.
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    pub(crate) depth: usize,
    /// Also measure how fast so many sequences decode together: each has a prompt (-p) of its own, and then generates its
    /// tokens (-n), one in each pass. At most 256.
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", value_parser = sequences)]
    pub(crate) sequences: Vec<usize>,
    /// Repetitions, after one that warms up.
    #[arg(short, long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,
    /// Threads to compute with [default: as many as the process may use].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// How keys and values are kept [default: f16 for quantized blobs, else f32].
    #[arg(long, value_enum)]
    pub(crate) kv: Option<Kv>,
    /// Round what prompts compute with, where the processor has a unit for it, as `smolrun --fast` does: not bit-exact.
    #[arg(long)]
    pub(crate) fast: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  smolrun bundle smol.bin -o chat
  smolrun bundle smollm2-135m-instruct --dtype q4 -o chat --system \"Answer in one sentence.\"
  smolrun bundle smol.bin -o poet --no-chat -- --temperature 0.8 -n 100
  smolrun bundle smol.bin -o chat-arm --program smolrun-aarch64
  ./chat \"What is the capital of France?\"
  smolrun info ./chat")]
pub(crate) struct BundleArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The file to write.
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// The system message.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Continue texts, though the model has a chat template.
    #[arg(long, conflicts_with = "system")]
    pub(crate) no_chat: bool,
    /// Take this program instead of the one that runs: smolrun for another processor, or a static one.
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Replace OUT.
    #[arg(long)]
    pub(crate) force: bool,
    /// Options of `smolrun MODEL` with which it runs, unless its user gives others.
    #[arg(last = true, value_name = "OPTION")]
    pub(crate) options: Vec<String>,
}

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Pooling {
    /// That of the last token.
    Last,
    /// The mean of all tokens'.
    Mean,
}

/// A number of sequences that one pass can take.
fn sequences(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=Engine::MAX_ROWS).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {}", Engine::MAX_ROWS))
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kv {
    /// Exactly as computed.
    F32,
    /// Rounded: half the memory, nearly the same logits.
    F16,
    /// Rounded to 8 bits: about a quarter of the memory.
    Q8,
}

/// What to do when the context is full.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OverflowArg {
    /// End with finish_reason "context".
    Stop,
    /// Forget the oldest 256 tokens after the first 256, and go on.
    Slide,
}

impl From<OverflowArg> for Overflow {
    fn from(overflow: OverflowArg) -> Overflow {
        match overflow {
            OverflowArg::Stop => Overflow::Stop,
            OverflowArg::Slide => Overflow::Slide,
        }
    }
}

impl From<Kv> for KvDtype {
    fn from(kv: Kv) -> KvDtype {
        match kv {
            Kv::F32 => KvDtype::F32,
            Kv::F16 => KvDtype::F16,
            Kv::Q8 => KvDtype::Q8,
        }
    }
}

#[derive(ClapArgs, Debug)]
pub(crate) struct GenerateArgs {
    /// The model: a blob that smolconv wrote, a GGUF file, a checkpoint's directory or .safetensors file, a name that
    /// `smolconv list` shows, or the id of a model on the Hugging Face hub: ORG/NAME, ORG/NAME@REVISION or
    /// ORG/NAME/FILE.gguf.
    ///
    /// What is no blob is fetched if it has to be, and converted once: `smolrun cache list` shows what came of it. A
    /// path that is there comes before a name.
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) dtype: DtypeArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
    /// Threads to compute with [default: as many as the process may use]; the text does not depend on it.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// How keys and values are kept [default: f16 for quantized blobs, else f32].
    #[arg(long, value_enum)]
    pub(crate) kv: Option<Kv>,
    /// What to do when the context is full.
    #[arg(long, value_enum, default_value_t = OverflowArg::Stop)]
    pub(crate) overflow: OverflowArg,
    /// Run prompts faster by rounding more, to bf16 or to 8 bits. Not bit-exact.
    ///
    /// A blob whose matrices are bf16 needs AMX or AMD's AVX512-BF16: activations are rounded to bf16. A quantized one needs
    /// AMX, where weights and activations are rounded to bf16, or VNNI or Arm's dot product, where activations are rounded
    /// to 8 bits instead of 12. On each of these, its attention is rounded to 8 bits, too. Without such a unit everything
    /// stays exact, and a line on standard error says so.
    ///
    /// Only pieces of a prompt of 32 tokens or more are rounded. Generation is always exact.
    ///
    /// The result does not depend on the number of threads. It depends on the unit, and on how the prompt is split.
    #[arg(long)]
    pub(crate) fast: bool,
    /// Reuse the keys and values in FILE, as far as the prompt begins like the one before, and write them back.
    ///
    /// If FILE is damaged, or was written with another blob or another --kv, a line on standard error says so, and the
    /// file is written anew.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_cache: Option<PathBuf>,
    /// Print times and memory to standard error.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print one JSON object at the end instead of the text as it is generated.
    #[arg(long, group = "json_output")]
    pub(crate) json: bool,
    /// Print one line of JSON for each token as it is generated, and one at the end that says how it ended.
    #[arg(long, group = "json_output")]
    pub(crate) json_lines: bool,
    /// Add each token's log-probability to the JSON, and the N most likely tokens in its place.
    #[arg(long, requires = "json_output", value_name = "N")]
    pub(crate) logprobs: Option<usize>,
    /// Check every checksum of the blob first.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Read the blob and the prompt cache into memory instead of mapping them, for example on a network mount.
    #[arg(long)]
    pub(crate) no_mmap: bool,
}

/// What to continue or answer.
#[derive(ClapArgs, Debug)]
pub(crate) struct PromptArgs {
    /// The text to continue, or to answer with --chat; "-" stands for standard input alone. Several words are joined
    /// with spaces. Without a prompt, a conversation begins if this is a terminal.
    ///
    /// If standard input is not a terminal, it is read to its end. It becomes the prompt, or follows the prompt on a
    /// new line. If it never ends, as in a service or in a loop that reads from it, add "< /dev/null".
    #[arg(value_name = "PROMPT")]
    pub(crate) text: Vec<String>,
    /// Read the prompt from a file.
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Render the blob's chat template around the prompt.
    #[arg(long)]
    pub(crate) chat: bool,
    /// The system message, before the prompt or in a conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Read the system message from a file.
    #[arg(long, value_name = "FILE", conflicts_with = "system")]
    pub(crate) system_file: Option<PathBuf>,
    /// Continue the conversation in FILE: {"messages": [{"role": "user", "content": ...}, ...]}, as /save writes it, or
    /// only the list. The prompt, if there is one, is the next message.
    ///
    /// A message may have whatever else the template reads: "reasoning_content" and "tool_calls" of the assistant,
    /// "tool_call_id" and "name" of a message of the role "tool".
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: Option<PathBuf>,
    /// Tell the template which tools the model may call: FILE has a JSON array of them.
    ///
    /// A tool is an object such as {"type": "function", "function": {"name": "now", "description": "Tells the time.",
    /// "parameters": {"type": "object", "properties": {}}}}. The model's call is part of its answer, in a form of the
    /// model's own. What the tool returned goes into --messages, as a message of the role "tool" after that of the
    /// assistant with "tool_calls".
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// Parse control tokens such as <|im_start|> in the prompt.
    #[arg(long, conflicts_with_all = ["chat", "messages"])]
    pub(crate) special: bool,
}

/// What `/set` can change in a conversation. No option has a default here, so that the program knows which were given.
#[derive(ClapArgs, Clone, Debug, Default)]
pub(crate) struct AnswerArgs {
    /// Generate at most N tokens [default: 256].
    #[arg(short = 'n', long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,
    /// Stop at this text, which is not printed. May be repeated.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

impl AnswerArgs {
    /// Most tokens to generate.
    pub(crate) fn max_tokens(&self) -> usize {
        self.max_tokens.unwrap_or(256)
    }
}
