"""Calls from many threads and tasks give what one thread's give."""

import asyncio
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import smolrun
from conftest import STRESS

STARTS = ["Once upon a time", "The king said:", "A little bear", "In a deep wood there"]
Answer = object


def drawn(choice: random.Random) -> tuple[str, dict[str, Any]]:
    temperature, seed = choice.choice([0.0, 1.0]), choice.randrange(3)
    return choice.choice(STARTS), {"max_tokens": choice.randrange(12), "temperature": temperature, "seed": seed}


def call(model: smolrun.Model, choice: random.Random) -> Callable[[], Answer]:
    """One of the calls, with its arguments."""
    start, options = drawn(choice)
    ids = [choice.randrange(4096) for _ in range(choice.randrange(1, 40))]

    def session() -> Answer:
        with model.session() as session:
            session.generate(start, max_tokens=3)
            with session.fork() as fork:
                return fork.generate(ids, max_tokens=3).ids

    def left_early() -> Answer:
        stream = model.generate(start, stream=True)
        return [next(stream).id, next(stream).id]

    return choice.choice(
        [
            lambda: model.generate(start, **options).ids,
            lambda: [piece.id for piece in model.generate(start, stream=True, max_tokens=5)],
            left_early,
            session,
            lambda: [found.ids for found in model.batch([start, ids], max_tokens=4)],
            lambda: model.logits(ids).tobytes(),
            lambda: model.score(start, [" was", " is"]),
            lambda: model.detokenize(model.tokenize(start)),
        ]
    )


def test_threads_do_not_disturb_one_another(tales: smolrun.Model) -> None:
    seeds = range(40 * STRESS)
    expected = [call(tales, random.Random(seed))() for seed in seeds]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: call(tales, random.Random(seed))(), seeds))
    assert found == expected


def test_threads_share_a_session(tales: smolrun.Model) -> None:
    with tales.session() as session, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: session.generate([i], max_tokens=2, ignore_eos=True), range(40)))
        assert len(session) == 120


def test_the_interpreter_is_free_meanwhile(tales: smolrun.Model) -> None:
    turns, is_done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not is_done.wait(0.001):
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    tales.logits([5] * 1024, all=True)
    is_done.set()
    counter.join()
    assert turns >= 2


def test_tasks_get_what_calls_do(tales: smolrun.Model) -> None:
    expected = [tales.generate(start, max_tokens=12).ids for start in STARTS]

    async def streamed(start: str) -> list[int]:
        return [piece.id async for piece in tales.agenerate(start, max_tokens=12, stream=True)]

    async def main() -> None:
        for _ in range(STRESS):
            whole = await asyncio.gather(*[tales.agenerate(start, max_tokens=12) for start in STARTS])
            assert [completion.ids for completion in whole] == expected
            assert await asyncio.gather(*map(streamed, STARTS)) == expected
        with tales.session() as session:
            assert (await session.agenerate(STARTS[0], max_tokens=12)).ids == expected[0]
        with pytest.raises(TypeError):
            await tales.agenerate(STARTS[0], wrong=1)  # type: ignore[call-overload]

    asyncio.run(main())


def task(model: smolrun.Model, choice: random.Random) -> tuple[Callable[[], Answer], Callable[[], Awaitable[Answer]]]:
    """A call, and one of the ways to the same with asyncio."""
    start, options = drawn(choice)
    delay = choice.random() / 100

    def plain() -> Answer:
        return model.generate(start, **options).ids

    async def whole() -> Answer:
        return (await model.agenerate(start, **options)).ids

    async def streamed() -> Answer:
        return [piece.id async for piece in model.agenerate(start, stream=True, **options)]

    async def session() -> Answer:
        with model.session() as session:
            return (await session.agenerate(start, **options)).ids

    async def after_another_was_left() -> Answer:
        async for _ in model.agenerate(start, max_tokens=200, ignore_eos=True, stream=True):
            break
        return await streamed()

    async def after_another_was_cancelled() -> Answer:
        with model.session() as session:
            lost = asyncio.ensure_future(session.agenerate([5] * 500, max_tokens=200, ignore_eos=True))
            await asyncio.sleep(delay)
            lost.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lost
            session.truncate(0)
            return (await session.agenerate(start, **options)).ids

    async def thread() -> Answer:
        return await asyncio.to_thread(plain)

    ways = [whole, streamed, session, after_another_was_left, after_another_was_cancelled, thread]
    return plain, choice.choice(ways)


def test_random_tasks_get_what_calls_do(tales: smolrun.Model) -> None:
    tasks = [task(tales, random.Random(seed)) for seed in range(40 * STRESS)]

    async def main() -> list[Answer]:
        turns = asyncio.Semaphore(8)

        async def in_turn(way: Callable[[], Awaitable[Answer]]) -> Answer:
            async with turns:
                return await way()

        return await asyncio.gather(*[in_turn(way) for _, way in tasks])

    expected = [plain() for plain, _ in tasks]
    assert asyncio.run(main()) == expected


def test_a_cancelled_task_ends_its_generation(tales_path: object) -> None:
    model = smolrun.load(str(tales_path), overflow="slide", threads=2)

    async def main() -> None:
        task = asyncio.ensure_future(model.agenerate("Once", max_tokens=10**9, ignore_eos=True))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async for _ in model.agenerate("Once", max_tokens=10**9, ignore_eos=True, stream=True):
            break

    # It waits for the threads that still generate.
    asyncio.run(asyncio.wait_for(main(), 20))


def test_switching_threads_often_changes_nothing(tales: smolrun.Model) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        test_threads_do_not_disturb_one_another(tales)
    finally:
        sys.setswitchinterval(interval)


def test_a_task_that_is_cancelled_while_it_waits_changes_nothing(chat: smolrun.Model) -> None:
    messages = [{"role": "child", "content": "Another tale."}]
    model = smolrun.load(chat.path, overflow="slide", threads=2)

    async def streamed(session: smolrun.Session) -> None:
        async for _ in session.agenerate(messages, max_tokens=1, stream=True):
            pass

    async def main(session: smolrun.Session) -> smolrun.Completion:
        stream = session.generate("Once", max_tokens=10**9, ignore_eos=True, stream=True)
        running = asyncio.ensure_future(asyncio.to_thread(stream.completion))
        await asyncio.sleep(0.1)
        for waiting in (session.agenerate(messages, max_tokens=1), streamed(session)):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waiting, 0.1)
        stream.cancel()
        return await running

    with model.session() as session:
        found = asyncio.run(main(session))  # it waits for all threads
        assert session.tokens[-9:] == found.ids[-9:]


def test_closing_a_batch_ends_what_runs(tales_path: object) -> None:
    model = smolrun.load(str(tales_path), overflow="slide", threads=2)
    batch = model.batch(["Once"] * 4, max_tokens=20_000, ignore_eos=True)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(list[smolrun.Completion], batch)
        time.sleep(0.2)
        start = time.perf_counter()
        batch.close()
        assert time.perf_counter() - start < 1
        with pytest.raises(smolrun.ClosedError, match="the batch is closed"):
            running.result()
