"""What programs written for llama-cpp-python see."""

from pathlib import Path
from typing import Any

import pytest

import smolrun
from smolrun.llama_cpp import Llama

MESSAGES = [{"role": "child", "content": "Tell me of a king."}]


@pytest.fixture(scope="module")
def llm(chat: smolrun.Model) -> Llama:
    return Llama(model_path=chat.path, n_ctx=512, n_threads=2, verbose=False)


def test_an_answer_has_the_shape_of_openai_s(llm: Llama, chat: smolrun.Model) -> None:
    expected = chat.generate(MESSAGES, max_tokens=12, temperature=0)
    found = llm.create_chat_completion(MESSAGES, max_tokens=12, temperature=0.0, logprobs=True, top_logprobs=2)
    choice = found["choices"][0]
    assert found["object"] == "chat.completion" and found["id"].startswith("chatcmpl-") and found["created"] > 0
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert len(choice["logprobs"]["content"]) == 12 and len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    prompt = expected.timings.prompt_tokens
    assert found["usage"] == {"prompt_tokens": prompt, "completion_tokens": 12, "total_tokens": prompt + 12}


def test_contents_may_come_in_parts(llm: Llama) -> None:
    parts = [{"role": "child", "content": [{"type": "text", "text": "Tell me of a king."}]}]
    found = [llm.create_chat_completion(messages, max_tokens=12, temperature=0.0) for messages in (MESSAGES, parts)]
    assert found[0]["choices"] == found[1]["choices"] and found[0]["usage"] == found[1]["usage"]
    image = [{"role": "child", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(smolrun.ArgumentError, match="found a part of the type image_url"):
        llm.create_chat_completion(image)


def test_a_stream_has_chunks(llm: Llama, chat: smolrun.Model) -> None:
    expected = chat.generate(MESSAGES, max_tokens=12, temperature=0).text
    chunks = list(llm.create_chat_completion(MESSAGES, max_tokens=12, temperature=0.0, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "length" and chunks[0]["object"] == "chat.completion.chunk"


def test_texts_are_continued(llm: Llama, chat: smolrun.Model) -> None:
    expected = chat.generate("Once upon a time", max_tokens=16).text
    found = llm("Once upon a time", temperature=0.0, echo=True)
    assert found["choices"][0]["text"] == "Once upon a time" + expected and found["object"] == "text_completion"
    for echo, before in ((False, ""), (True, "Once upon a time")):
        chunks = llm.create_completion("Once upon a time", temperature=0.0, stream=True, echo=echo)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == before + expected
    assert llm.tokenize(b"Once")[0] == llm.token_bos() and (llm.n_ctx(), llm.n_vocab()) == (1024, 4096)


def test_control_tokens_of_a_prompt_are_parsed(llm: Llama, chat: smolrun.Model) -> None:
    prompt = f"Once upon{chat.special_tokens[chat.eos_token_ids[0]]}A king"
    alone, parsed = chat.tokenize(prompt), chat.tokenize(prompt, special=True)
    assert chat.eos_token_ids[0] in parsed and len(parsed) < len(alone)
    found = llm(prompt, temperature=0.0, max_tokens=4)
    assert found["usage"]["prompt_tokens"] == len(chat.tokenize(prompt, prompt=True, special=True))
    assert found["choices"][0]["text"] == chat.generate(parsed, max_tokens=4).text


def test_bytes_of_tokens_may_be_parts_of_characters(llm: Llama) -> None:
    text = "A €10 note, a 🐎 and naïve words".encode()
    ids = llm.tokenize(text, add_bos=False)
    pieces = [llm.detokenize([token]) for token in ids]
    assert b"".join(pieces) == llm.detokenize(ids, prev_tokens=ids) == text
    with pytest.raises(UnicodeDecodeError):
        [piece.decode() for piece in pieces]
    (eos,) = llm.tokenize(b"<|endoftext|>", add_bos=False, special=True)
    assert llm.detokenize([*ids, eos]) == text and llm.detokenize([*ids, eos], special=True) == text + b"<|endoftext|>"


def test_values_that_change_nothing_are_taken(llm: Llama) -> None:
    plain = llm.create_chat_completion(MESSAGES, max_tokens=8, seed=3, top_k=0)["choices"]
    neutral: dict[str, Any] = {"tfs_z": 1.0, "mirostat_mode": 0, "mirostat_tau": 5.0, "response_format": {"type": "text"}}
    assert llm.create_chat_completion(MESSAGES, max_tokens=8, seed=3, top_k=-1, **neutral)["choices"] == plain
    with pytest.raises(TypeError, match="does not know the argument 'mirostat_mode'"):
        llm.create_chat_completion(MESSAGES, mirostat_mode=2)


def test_what_would_change_the_answer_is_not_ignored(llm: Llama) -> None:
    with pytest.raises(TypeError, match="does not know the argument 'grammar'"):
        llm.create_chat_completion(MESSAGES, grammar="x")
    with pytest.raises(TypeError, match="'logprobs' of a stream"):
        llm.create_chat_completion(MESSAGES, logprobs=True, stream=True)
    with pytest.raises(TypeError, match="'lora_path'"):
        Llama(llm.model_path, lora_path="x")
    with pytest.raises(TypeError, match="'n_cxt'"):
        Llama(llm.model_path, n_cxt=5)
    with pytest.raises(TypeError, match="'rope_freq_scale'"):
        Llama(llm.model_path, rope_freq_scale=0.1)
    Llama(llm.model_path, rope_freq_scale=0.0, n_gpu_layers=-1, lora_path=None).close()
    assert llm.create_chat_completion(MESSAGES, max_tokens=2, repeat_penalty=1.1, model="x", grammar=None)


def test_a_closed_one_says_so(tales_path: Path) -> None:
    llm = Llama(str(tales_path))
    llm.close()
    with pytest.raises(smolrun.ClosedError):
        llm("Once")


def test_penalties_look_at_so_many_tokens(llm: Llama) -> None:
    def text(size: int) -> str:
        other = Llama(llm.model_path, last_n_tokens_size=size)
        found = other("Once upon a time", max_tokens=120, temperature=0.0, repeat_penalty=1.5)["choices"][0]["text"]
        other.close()
        return str(found)

    def ours(**more: Any) -> str:
        options: dict[str, Any] = {"temperature": 0.0, "top_p": 0.95, "top_k": 40, "min_p": 0.05, **more}
        return str(llm.model.generate("Once upon a time", max_tokens=120, seed=0, special=True, **options).text)

    assert text(64) == ours(repetition_penalty=1.5, penalty_window=64) != ours(repetition_penalty=1.5)
    assert text(-1) == ours(repetition_penalty=1.5) and text(0) == ours()


def test_bytes_of_half_a_character_are_its_own(llm: Llama) -> None:
    half = llm.tokenize("🦊".encode(), add_bos=False)[0]
    asked: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "logprobs": True, "logit_bias": {half: 100}}
    token = llm.create_chat_completion(MESSAGES, **asked)["choices"][0]["logprobs"]["content"][0]
    assert bytes(token["bytes"]) == llm.model.token_bytes(half) != token["token"].encode()
