"""smolrun: small language models from one mapped file, on a plain CPU.

    import smolrun

    model = smolrun.load("tales.bin")
    for piece in model.generate("Once upon a time", max_tokens=100, stream=True):
        print(piece, end="", flush=True)

load opens a blob that `smolconv` wrote, or makes one of a checkpoint, a GGUF file or a model on the Hugging Face hub. A
Model generates text (generate, agenerate, batch), keeps conversations (session), and tells what it computes (logits,
hidden, embed, score, perplexity). convert makes blobs. Every error is a smolrun.Error with a code.

Threads: a Model, Session, Stream or Batch may be used from any thread; calls on one Session, Stream or Batch wait for
one another. The interpreter is free for others while a model runs. Ctrl-C ends a call within one pass of the model.
After a fork, a Model works in the child; the sessions, streams and batches of the parent raise ForkedError there.

A corpus, on one machine or a cluster: smolrun.jobs, smolrun.ray, smolrun.spark and smolrun.daft give the rows of tables
what smolrun.tasks asks for. distribute fetches a blob once for each node.

Adapters: smolrun.lm_eval for lm-evaluation-harness, smolrun.langchain for LangChain, smolrun.llama_cpp for programs
written for llama-cpp-python.
"""

from smolrun._errors import (
    ArgumentError,
    BlobError,
    BusyError,
    ChatTemplateError,
    ClosedError,
    ContextError,
    ConvertError,
    Error,
    FileError,
    FileMissingError,
    ForkedError,
    NotFiniteError,
    OutOfMemoryError,
    SavedSessionError,
    StreamEndedError,
)
from smolrun._smolrun import (
    Alternative,
    Batch,
    Completion,
    Model,
    Perplexity,
    Piece,
    Score,
    Session,
    Stream,
    Summary,
    Timings,
    TokenLogprobs,
    __version__,
    convert,
    load,
)

TYPE_CHECKING = False  # as typing's, which takes longer to import than all else here
if TYPE_CHECKING:
    from smolrun._distribute import distribute

__all__ = [
    "Alternative",
    "ArgumentError",
    "Batch",
    "BlobError",
    "BusyError",
    "ChatTemplateError",
    "ClosedError",
    "Completion",
    "ContextError",
    "ConvertError",
    "Error",
    "FileError",
    "FileMissingError",
    "ForkedError",
    "Model",
    "NotFiniteError",
    "OutOfMemoryError",
    "Perplexity",
    "Piece",
    "SavedSessionError",
    "Score",
    "Session",
    "Stream",
    "StreamEndedError",
    "Summary",
    "Timings",
    "TokenLogprobs",
    "__version__",
    "convert",
    "distribute",
    "load",
]


def __getattr__(name: str) -> object:
    if name == "distribute":  # likewise
        from smolrun._distribute import distribute

        return distribute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
