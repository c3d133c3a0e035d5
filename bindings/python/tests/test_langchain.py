"""As a chat model of LangChain: runs where langchain-core is installed."""

import asyncio

import pytest

import smolrun

pytest.importorskip("langchain_core")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate

from smolrun.langchain import ChatSmolrun

SAID = [SystemMessage("Be brief."), HumanMessage("Hello")]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model(chat: smolrun.Model) -> ChatSmolrun:
    return ChatSmolrun(model_path=str(chat.path), threads=2, max_tokens=12, temperature=0)


def test_it_answers(model: ChatSmolrun, chat: smolrun.Model) -> None:
    expected = chat.generate(MESSAGES, max_tokens=12, temperature=0)
    found = model.invoke(SAID)
    assert isinstance(found, AIMessage) and found.content == expected.text
    assert found.response_metadata["finish_reason"] == "length"
    assert found.usage_metadata and found.usage_metadata["output_tokens"] == 12
    assert "".join(str(chunk.content) for chunk in model.stream(SAID)) == expected.text
    assert [answer.content for answer in model.batch([SAID, SAID])] == [expected.text] * 2
    word = expected.text.split()[2]
    assert model.invoke(SAID, stop=[word]).content == expected.text[: expected.text.index(word)]


def test_a_call_s_own_stop_counts_before_the_options(model: ChatSmolrun) -> None:
    text = str(model.invoke(SAID).content)
    first, other = text.split()[1:3]
    with_stop = model.model_copy(update={"options": {"stop": [first]}})
    assert with_stop.invoke(SAID).content == text[: text.index(first)]
    assert with_stop.invoke(SAID, stop=[other]).content == text[: text.index(other)]


def test_it_answers_tasks_and_chains(model: ChatSmolrun) -> None:
    expected = model.invoke(SAID).content

    async def main() -> None:
        assert (await model.ainvoke(SAID)).content == expected
        assert "".join([str(chunk.content) async for chunk in model.astream(SAID)]) == expected

    asyncio.run(main())
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{text}")])
    assert (prompt | model).invoke({"text": "Hello"}).content == expected
