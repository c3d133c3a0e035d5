"""smolrun as a chat model of LangChain (langchain-core).

    from smolrun.langchain import ChatSmolrun

    chat = ChatSmolrun(model_path="smol.bin", max_tokens=100)
    print(chat.invoke("What is the capital of France?").content)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field, PrivateAttr

import smolrun


class ChatSmolrun(BaseChatModel):
    """A model as smolrun.load opens it, which answers messages by its chat template."""

    model_path: str
    """What to load: a blob, a GGUF file, a checkpoint's directory, a name or the id of a model on a hub."""
    threads: int | None = None
    """Threads to compute with; by default as many as the process may use."""
    max_tokens: int = 256
    """Most tokens of an answer."""
    temperature: float | None = None
    """How tokens are drawn; by default as the checkpoint recommends."""
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    """Decides every draw; by default each answer has another one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Any other options of smolrun.Model.generate."""

    _model: smolrun.Model = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the model."""
        super().model_post_init(context)
        self._model = smolrun.load(self.model_path, threads=self.threads)

    @property
    def _llm_type(self) -> str:
        return "smolrun"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model_path": self.model_path, **self._asked(None, {})}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        found = self._model.generate(_said(messages), **self._asked(stop, kwargs))
        prompt, tokens = found.timings.prompt_tokens, found.timings.tokens
        message = AIMessage(
            content=found.text,
            response_metadata={"finish_reason": found.finish_reason, "seed": found.seed},
            usage_metadata=UsageMetadata(input_tokens=prompt, output_tokens=tokens, total_tokens=prompt + tokens),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with self._model.generate(_said(messages), stream=True, **self._asked(stop, kwargs)) as stream:
            for piece in stream:
                reason = {} if piece.finish_reason is None else {"finish_reason": piece.finish_reason}
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece.text, response_metadata=reason))
                if run_manager:
                    run_manager.on_llm_new_token(piece.text, chunk=chunk)
                yield chunk

    def _asked(self, stop: list[str] | None, more: Mapping[str, Any]) -> dict[str, Any]:
        asked = {name: getattr(self, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")}
        return {**asked, **self.options, **({} if stop is None else {"stop": stop}), **more}


def _said(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    said = convert_to_openai_messages(messages, text_format="string")
    return said if isinstance(said, list) else [said]
