"""For programs written for llama-cpp-python: its class Llama, as far as these calls go.

    from smolrun.llama_cpp import Llama

    llm = Llama(model_path="smol.bin")
    answer = llm.create_chat_completion([{"role": "user", "content": "Hello"}], max_tokens=50)
    print(answer["choices"][0]["message"]["content"])

Arguments, defaults and results have llama-cpp-python's names and shapes, and control tokens that a prompt spells are
parsed, as they are there. (Those in the contents of messages are text: they could end a message.) An argument that would
change the answer and is not known here is an error. The random numbers are smolrun's own, so that a seed gives other
draws.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import Any

import smolrun

# What llama-cpp-python takes where nobody says so.
_DEFAULTS = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "typical_p": 1.0}
_CHAT_DEFAULTS = _DEFAULTS | {"temperature": 0.2}
# Its names for what has another one here.
_RENAMED = {"repeat_penalty": "repetition_penalty"}
_KNOWN = frozenset(
    [*_DEFAULTS, "max_tokens", "stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "repeat_penalty"]
)
# What changes nothing with this value. Mirostat's own two count only if it is chosen.
_NEUTRAL = {"tfs_z": 1.0, "mirostat_mode": 0, "response_format": {"type": "text"}, "tool_choice": "auto"}
_OF_MIROSTAT = frozenset(["mirostat_tau", "mirostat_eta"])
# What changes no text.
_IGNORED = frozenset(
    """n_gpu_layers split_mode main_gpu tensor_split rpc_servers use_mmap use_mlock n_ctx n_batch n_ubatch n_threads_batch
    pooling_type logits_all embedding offload_kqv flash_attn op_offload swa_full no_perf numa type_k type_v spm_infill
    verbose""".split()
)
# What changes it, unless it has this value.
_NEUTRAL_TO_LOAD = {
    "vocab_only": False,
    "rope_scaling_type": -1,
    "attention_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "lora_scale": 1.0,
}
_FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length", "cancelled": "stop"}


class Llama:
    """A model, by the interface of llama-cpp-python."""

    def __init__(
        self,
        model_path: str | PathLike[str],
        *,
        n_threads: int | None = None,
        seed: int = 0,
        last_n_tokens_size: int = 64,
        **others: Any,
    ) -> None:
        """Open a model: whatever smolrun.load takes.

        last_n_tokens_size: how many of the last tokens the penalties look at; -1 for all

        The arguments of llama-cpp-python that change no text (n_ctx, n_batch, n_gpu_layers, verbose, ...) are ignored:
        the model's whole context is there, and its memory is taken as it is needed. All others, such as lora_path, are
        an error.
        """
        for name, value in others.items():
            is_neutral = name in _NEUTRAL_TO_LOAD and value == _NEUTRAL_TO_LOAD[name]
            if name not in _IGNORED and value is not None and not is_neutral:
                raise TypeError(f"smolrun.llama_cpp does not know the argument {name!r}")
        self.model_path = str(model_path)
        self.model = smolrun.load(model_path, threads=n_threads)
        self._seed = seed
        self._window = last_n_tokens_size

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stream: bool = False,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **options: Any,
    ) -> Any:
        """Answer messages: a dict as OpenAI's API returns it, or with stream=True an iterator of its chunks."""
        asked = self._options(_CHAT_DEFAULTS, options) | {"tools": tools}
        if logprobs:
            asked["logprobs"] = top_logprobs or 0
        head = self._head("chatcmpl", "chat.completion")
        if stream:
            if logprobs:
                raise TypeError("smolrun.llama_cpp does not know the argument 'logprobs' of a stream")
            return self._chat_chunks(head, self.model.generate(messages, stream=True, **asked))
        found = self.model.generate(messages, **asked)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": found.text},
            "logprobs": self._chat_logprobs(found.logprobs),
            "finish_reason": _FINISH_REASONS[found.finish_reason],
        }
        return head | {"choices": [choice], "usage": _usage(found)}

    def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool = False, echo: bool = False, **options: Any
    ) -> Any:
        """Continue prompt, a str or token ids: a dict as OpenAI's API returns it, or its chunks."""
        asked = self._options(_DEFAULTS, {"max_tokens": 16} | options) | {"special": True}
        head = self._head("cmpl", "text_completion")
        before = ""
        if echo:
            before = prompt if isinstance(prompt, str) else self.model.detokenize(prompt)
        if stream:
            return self._text_chunks(head, before, self.model.generate(prompt, stream=True, **asked))
        found = self.model.generate(prompt, **asked)
        choice = {
            "text": before + found.text,
            "index": 0,
            "logprobs": None,
            "finish_reason": _FINISH_REASONS[found.finish_reason],
        }
        return head | {"choices": [choice], "usage": _usage(found)}

    __call__ = create_completion

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The token ids of text in UTF-8."""
        ids = self.model.tokenize(text.decode(), special=special)
        bos = self.model.bos_token_id
        return [bos, *ids] if add_bos and bos is not None else ids

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of token ids: any part of a text in UTF-8. With special=True, control tokens have theirs, too.

        After the token that begins a text, a first space is left out. prev_tokens changes nothing.
        """
        left_out = frozenset[int]() if special else self._control
        found = b"".join(self.model.token_bytes(token) for token in tokens if token not in left_out)
        begins_text = len(tokens) > 0 and tokens[0] == self.token_bos()
        return found.removeprefix(b" ") if begins_text else found

    def n_ctx(self) -> int:
        """Most tokens of a sequence."""
        return self.model.context_size

    def n_vocab(self) -> int:
        """How many token ids there are."""
        return self.model.vocab_size

    def token_eos(self) -> int:
        """The token that ends a text."""
        return self.model.eos_token_ids[0]

    def token_bos(self) -> int | None:
        """The token that begins a text."""
        return self.model.bos_token_id

    def close(self) -> None:
        """Let the model go."""
        self.model.close()

    @cached_property
    def _control(self) -> frozenset[int]:
        return frozenset(self.model.special_tokens)

    def _options(self, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if not _changes_nothing(name, value)}
        if unknown := sorted(given.keys() - _KNOWN):
            raise TypeError(f"smolrun.llama_cpp does not know the argument {unknown[0]!r}")
        asked = {"seed": self._seed, "penalty_window": max(self._window, 0), **defaults, **given}
        if self._window == 0:  # there, penalties look at nothing; here, at all
            asked = {name: value for name, value in asked.items() if not name.endswith("_penalty")}
        asked["top_k"] = max(asked["top_k"], 0)  # there, all tokens are 0 or less
        # There, no limit is None, 0 or less.
        if asked.get("max_tokens") is None or asked["max_tokens"] <= 0:
            asked["max_tokens"] = self.model.context_size
        asked["logit_bias"] = {int(token): bias for token, bias in asked.get("logit_bias", {}).items()}
        asked["stop"] = asked.get("stop") or None
        return {_RENAMED.get(name, name): value for name, value in asked.items()}

    def _chat_logprobs(self, tokens: list[smolrun.TokenLogprobs] | None) -> dict[str, Any] | None:
        def entry(of: smolrun.TokenLogprobs | smolrun.Alternative) -> dict[str, Any]:
            return {"token": of.text, "logprob": of.logprob, "bytes": list(self.model.token_bytes(of.id))}

        if tokens is None:
            return None
        content = [entry(token) | {"top_logprobs": list(map(entry, token.top))} for token in tokens]
        return {"content": content, "refusal": None}

    def _head(self, kind: str, name: str) -> dict[str, Any]:
        return {"id": f"{kind}-{uuid.uuid4()}", "object": name, "created": int(time.time()), "model": self.model_path}

    def _chat_chunks(self, head: dict[str, Any], stream: smolrun.Stream) -> Iterator[dict[str, Any]]:
        head = head | {"object": "chat.completion.chunk"}

        def chunk(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
            return head | {"choices": [choice]}

        yield chunk({"role": "assistant"})
        with stream:
            for piece in stream:
                if piece.text:
                    yield chunk({"content": piece.text})
            yield chunk({}, _FINISH_REASONS[stream.finish_reason or "cancelled"])

    def _text_chunks(self, head: dict[str, Any], before: str, stream: smolrun.Stream) -> Iterator[dict[str, Any]]:
        def chunk(text: str, reason: str | None = None) -> dict[str, Any]:
            return head | {"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}]}

        with stream:
            if before:
                yield chunk(before)
            for piece in stream:
                if piece.text:
                    yield chunk(piece.text)
            yield chunk("", _FINISH_REASONS[stream.finish_reason or "cancelled"])


def _changes_nothing(name: str, value: Any) -> bool:
    is_neutral = name in _NEUTRAL and value == _NEUTRAL[name]
    return value is None or is_neutral or name == "model" or name in _OF_MIROSTAT


def _usage(found: smolrun.Completion) -> dict[str, int]:
    prompt, completion = found.timings.prompt_tokens, found.timings.tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
