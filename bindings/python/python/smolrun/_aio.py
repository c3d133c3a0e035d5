"""agenerate: what generate does, in threads of the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from smolrun._smolrun import Cancel, Completion, Model, Piece, Session, Stream


async def complete(of: Model | Session, prompt: Any, options: dict[str, Any]) -> Completion:
    """All of a generated text. Cancelling the task ends it within one pass."""
    cancel = Cancel()
    try:
        generation = await _begin(of, prompt, options, cancel)
        return await asyncio.to_thread(generation.completion)
    finally:
        cancel.cancel()


async def stream(of: Model | Session, prompt: Any, options: dict[str, Any]) -> AsyncIterator[Piece]:
    """The pieces of a generated text. Leaving the loop, or cancelling the task, ends it within one pass."""
    cancel = Cancel()
    try:
        generation = await _begin(of, prompt, options, cancel)
        while (piece := await asyncio.to_thread(next, generation, None)) is not None:
            yield piece
    finally:
        cancel.cancel()


async def _begin(of: Model | Session, prompt: Any, options: dict[str, Any], cancel: Cancel) -> Stream:
    """A generation that `cancel` ends. While it still waits for its session, it then never begins."""
    asked: dict[str, Any] = {**options, "_cancel": cancel}
    return await asyncio.to_thread(lambda: of.generate(prompt, stream=True, **asked))
