"""``RagSession``: the prompt is the proxy's, turns grow as prefixes, and a call that fails changes nothing."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from tests.rag.support import Shelf, document, prompts, sent

from prefixpilot import Constraints, ContextBlock
from prefixpilot.errors import EngineError, InvalidRequestError
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.rag import RagSession
from prefixpilot.rag.client import reply_of
from prefixpilot.testing import BreakOff, Respond, SimulatedCall, SimulatedEngine, SimulatedReply

TEXTS = [document(i) for i in range(8)]


def session(client: openai.OpenAI, **settings: Any) -> RagSession:
    return RagSession(client, model="m", **settings)


def test_blocks_stand_in_front_of_the_question(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    answer = session(client, system="Be short.", temperature=0).ask("Q?", ["A", ContextBlock("B", title="T")])
    assert answer.text == "This is a simulated answer."
    body = engine.chats[0].json()
    assert body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "[Doc 1]\nA\n\n[Doc 2] T\nB\n\nQ?"},
    ]
    assert body["temperature"] == 0 and set(body) == {"messages", "model", "temperature"}
    assert engine.chats[0].header("x-request-id") == answer.plan.request_id


def test_the_retriever_is_asked_for_k(client: openai.OpenAI) -> None:
    shelf = Shelf(TEXTS)
    rag = session(client, retriever=shelf, k=2)
    assert rag.ask("Which of 3, 1, 4?").plan.sent == rag.fresh().ask("Which of 3, 1, 4?").plan.sent
    assert len(rag.fresh().ask("Which of 3, 1, 4?", k=3).plan.blocks) == 3
    assert [k for _, k in shelf.asked] == [2, 2, 3]


def test_independent_questions_share_a_prefix(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    rag = session(client, retriever=Shelf(TEXTS))
    rag.ask("Which of 1, 2, 3?")
    second = rag.fresh().ask("Which of 4, 2, 1?")
    assert second.plan.order == (2, 1, 0)
    shared = f"[Doc 1]\n{TEXTS[1]}\n\n[Doc 2]\n{TEXTS[2]}\n\n[Doc 3]\n"
    assert all(messages[0]["content"].startswith(shared) for messages in sent(engine))
    assert (second.usage.cached_tokens or 0) > 60
    assert "priority order" in sent(engine)[1][0]["content"]


def test_it_renders_as_the_proxy_does(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    asked = [("Q1?", [1, 2, 3]), ("Q2?", [4, 2, 1]), ("Q3?", [1, 4, 2, 6])]
    rag = session(client)
    for question, named in asked:
        rag.fresh().ask(question, [TEXTS[i] for i in named])
    with serve_in_thread(ProxySettings(engine.base_url, port=0)) as proxy:
        through = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=10)
        for question, named in asked:
            through.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": question}],
                extra_body={"context_blocks": [TEXTS[i] for i in named]},
            )
    ours, proxys = sent(engine)[:3], sent(engine)[3:]
    assert ours == proxys


@pytest.mark.parametrize("streamed", [False, True])
def test_each_prompt_is_a_prefix_of_the_next(engine: SimulatedEngine, client: openai.OpenAI, streamed: bool) -> None:
    rag = session(client, retriever=Shelf(TEXTS), system="S")
    for turn, named in enumerate(("1, 2, 3", "2, 4", "4, 1, 5, 5", "")):
        if streamed:
            with rag.stream(f"Which of {named}? ({turn}th)") as pieces:
                text = "".join(pieces)
            answer = pieces.answer
            assert text == answer.text
        else:
            answer = rag.ask(f"Which of {named}? ({turn}th)")
        assert answer.usage.prompt_tokens
    read = prompts(engine)
    for before, after in itertools.pairwise(read):
        assert after.startswith(before)
    assert read[1].count("Please refer to [Doc 2] in the previous conversation.") == 1
    for text in TEXTS[1:6]:
        assert read[3].count(text) == 1  # no evidence is lost, and none stands twice
    assert [m["role"] for m in rag.messages] == ["system", *["user", "assistant"] * 4]


def test_sources_name_all_blocks_of_the_conversation(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    rag = session(client)
    rag.ask("Q1?", ["A", "B"])
    engine.reply = lambda body: "As [Doc 3] and [Doc 1] say."
    answer = rag.ask("Q2?", ["C", "A"])
    assert {label: block.text for label, block in answer.sources.items()} == {"Doc 1": "A", "Doc 2": "B", "Doc 3": "C"}
    assert [block.text for block in answer.cited.values()] == ["A", "C"]
    assert answer.plan.labels == ("Doc 3", "Doc 1")


def test_labels_that_the_user_or_the_model_writes_are_not_given_again(
    engine: SimulatedEngine, client: openai.OpenAI
) -> None:
    rag = session(client)
    engine.reply = lambda body: "[Doc 1]\nis what I would quote, and [Doc 2] too."
    assert rag.ask("What of [Doc 1]?", ["A"]).plan.labels == ("Doc 2",)
    again = rag.ask("And now?", ["A", "B"])
    assert again.plan.labels == ("Doc 2", "Doc 3")
    engine.reply = lambda body: "[Doc 2]\nis mine."
    rag.ask("Hm?", [])
    assert rag.ask("And A?", ["A"]).plan.blocks[0].location_annotation is None


def test_constraints_hold(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    rag = session(client)
    rag.ask("Q?", ["A", "B", "C"])
    kept = rag.fresh().ask("Q?", ["C", "B", "A"], constraints=Constraints(first=0))
    assert kept.plan.order[0] == 0
    pinned = rag.fresh().ask("Q?", [{"text": "C", "pin": "first"}, "B", "A"])
    assert pinned.plan.order == kept.plan.order
    with pytest.raises(InvalidRequestError, match=r"^constraints: are given beside pins"):
        rag.ask("Q?", [{"text": "C", "pin": "first"}], constraints=Constraints(last=0))


def test_blocks_may_be_objects_as_in_a_body(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    forms: list[Any] = [{"text": "A", "title": "T", "id": 7}, ContextBlock("A", title="T", id=7)]
    for block in forms:
        session(client).ask("Q?", ["B", block])
    assert sent(engine)[0] == sent(engine)[1] == [{"role": "user", "content": "[Doc 1]\nB\n\n[Doc 2] T\nA\n\nQ?"}]


FAILURES = [Respond(status=500, body=b"{}"), BreakOff(after_chunks=2)]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("fault", FAILURES, ids=lambda fault: type(fault).__name__)
def test_a_failed_call_records_nothing(
    engine: SimulatedEngine, client: openai.OpenAI, fault: Any, streamed: bool
) -> None:
    rag = session(client)
    rag.ask("Q1?", ["A"])
    before = rag.history
    engine.fault = fault
    with pytest.raises((openai.OpenAIError, EngineError)):
        "".join(rag.stream("Q2?", ["A", "B"])) if streamed else rag.ask("Q2?", ["A", "B"])
    assert rag.history is before
    engine.fault = None
    assert rag.ask("Q2?", ["A", "B"]).plan.labels == ("Doc 1", "Doc 2")
    assert len(rag.messages) == 4


def test_a_stream_that_is_left_early_records_nothing(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    rag = session(client)
    with rag.stream("Q1?", ["A"]) as pieces:
        next(iter(pieces))
        with pytest.raises(EngineError, match="not complete"):
            _ = pieces.answer
    assert rag.messages == ()


def test_two_turns_at_once_are_refused_before_the_second_is_sent(
    engine: SimulatedEngine, client: openai.OpenAI
) -> None:
    rag = session(client)
    planned = rag.stream("Q1?", [])
    rag.ask("Q2?", [])
    with pytest.raises(InvalidRequestError, match="another turn meanwhile"):
        "".join(planned)
    with rag.stream("Q3?", []) as pieces:
        next(iter(pieces))
        with pytest.raises(InvalidRequestError, match="in the middle of another turn"):
            rag.ask("Q4?", [])
        rag.fresh().ask("Q5?", [])
    rag.ask("Q6?", [])
    assert [messages[-1]["content"] for messages in sent(engine)] == ["Q2?", "Q3?", "Q5?", "Q6?"]
    assert len(rag.messages) == 4


def test_of_two_threads_only_one_pays(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    asked, refused = threading.Event(), threading.Event()

    def reply(body: Any) -> str:
        asked.set()
        assert refused.wait(30)
        return "Yes."

    engine.reply = reply
    rag = session(client)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(rag.ask, "Q1?", ["A"])
        assert asked.wait(30)
        try:
            with pytest.raises(InvalidRequestError, match="in the middle of another turn"):
                rag.ask("Q2?", ["A"])
        finally:
            refused.set()
        assert first.result(30).text == "Yes."
    assert len(engine.chats) == 1 and len(rag.messages) == 2


def test_a_function_that_asks_the_session_again_is_refused(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    engine.reply = reading(1)
    rag = session(client, tools=TOOLS)
    with pytest.raises(InvalidRequestError, match="in the middle of another turn"):
        rag.ask("Q?", [], functions={"read_file": lambda path: rag.ask("And?", []).text})
    assert len(engine.chats) == 1 and rag.messages == ()


def test_usage_that_is_not_told_is_unknown(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    choices = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}]
    engine.fault = Respond(status=200, body=json.dumps({**body, "choices": choices}).encode())
    usage = session(client).ask("Q?", ["A"]).usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.prefilled_tokens) == (None, None, None)
    engine.fault = Respond(status=200, body=json.dumps({**body, "choices": []}).encode())
    with pytest.raises(EngineError, match="no message"):
        session(client).ask("Q?", ["A"])


@pytest.mark.parametrize(
    ("blocks", "field"),
    [
        ("A", "blocks"),
        (None, "blocks"),
        ([""], r"blocks\[0\]"),
        ([ContextBlock(id=1)], r"blocks\[0\]"),
        ([3], r"blocks\[0\]"),
        ({"text": "A"}, "blocks: is one dict"),
        ([{"text": ""}], r"blocks\[0\]\.text"),
        ([{"content": "A"}], r"blocks\[0\]\.content"),
        ([{"text": "A", "pin": "top"}], r"blocks\[0\]\.pin"),
        ([{"text": "A", "pin": {1}}], r"blocks\[0\]\.pin"),
    ],
)
def test_blocks_that_cannot_be_used(client: openai.OpenAI, blocks: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}"):
        session(client).ask("Q?", blocks)


@pytest.mark.parametrize("question", ["", None, 3])
def test_questions_that_cannot_be_used(client: openai.OpenAI, question: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^question"):
        session(client).ask(question, [])


def test_options_that_are_the_sessions(client: openai.OpenAI) -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages"):
        session(client, messages=[])
    with pytest.raises(InvalidRequestError, match=r"^stream"):
        session(client).ask("Q?", [], stream=True)


@pytest.mark.parametrize(
    ("setting", "meant"),
    [("retreiver", "retriever"), ("sytem", "system"), ("temprature", "temperature"), ("guided_json", "extra_body")],
)
def test_a_setting_that_nothing_takes_is_refused_where_it_is_set(
    client: openai.OpenAI, engine: SimulatedEngine, setting: str, meant: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{setting}: .*{meant}"):
        session(client, **{setting: 1})
    options: dict[str, Any] = {setting: 1}
    with pytest.raises(InvalidRequestError, match=f"^{setting}: "):
        session(client).ask("Q?", [], **options)
    assert not engine.chats


def test_a_client_that_was_wrapped_may_take_more(client: openai.OpenAI, engine: SimulatedEngine) -> None:
    """Tools that watch calls put a function of theirs in the place of the SDK's."""
    own, seen = client.chat.completions.create, []

    def create(*, trace_name: str, **call: Any) -> Any:
        seen.append(trace_name)
        return own(**call)

    client.chat.completions.create = create  # type: ignore[method-assign, assignment]
    session(client, trace_name="T").ask("Q?", [])
    assert seen == ["T"] and len(engine.chats) == 1


# -- tools

READ = SimulatedCall("c", "read_file", '{"path": "a.py"}')
TOOLS: Any = [{"type": "function", "function": {"name": "read_file", "parameters": {}}}]
FILE = "def main():\n" + "    print('hello')\n" * 30


def reading(rounds: int) -> Any:
    """Reads the file so many times, then answers."""

    def reply(body: Any) -> str | SimulatedReply:
        read = sum(message["role"] == "tool" for message in body["messages"])
        calls = (SimulatedCall(f"c{read}", READ.name, READ.arguments),)
        return SimulatedReply(calls=calls) if read < rounds else "Done."

    return reply


def test_a_file_that_is_read_again_is_named_once_and_then_sent_in_full(
    engine: SimulatedEngine, client: openai.OpenAI
) -> None:
    engine.reply = reading(3)
    rag = session(client, tools=TOOLS)
    answer = rag.ask("Fix a.py.", ["Style guide."], functions={"read_file": lambda path: FILE})
    assert (answer.text, answer.calls) == ("Done.", 4)
    results = [m["content"] for m in rag.messages if m["role"] == "tool"]
    named = '[Unchanged: same text as the latest result of read_file({"path": "a.py"}) above.]'
    assert results == [FILE, named, FILE]
    read = prompts(engine)
    for before, after in itertools.pairwise(read):
        assert after.startswith(before)


def test_a_file_that_was_edited_is_sent_in_full(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    engine.reply = reading(4)
    versions = iter([FILE, FILE + "# edited\n", FILE, FILE + "# edited\n"])
    rag = session(client, tools=TOOLS)
    rag.ask("Fix a.py.", [], functions={"read_file": lambda path: next(versions)})
    assert all("Unchanged" not in m["content"] for m in rag.messages if m["role"] == "tool")


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("nothing", "{}", "no tool 'nothing'"),
        ("read_file", "{", "Error: "),
        ("read_file", "[1]", "not a JSON object"),
        ("read_file", '{"file": 1}', "Error: "),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model(
    engine: SimulatedEngine, client: openai.OpenAI, name: str, arguments: str, told: str
) -> None:
    def reply(body: Any) -> str | SimulatedReply:
        done = body["messages"][-1]["role"] == "tool"
        return "Done." if done else SimulatedReply(calls=(SimulatedCall("c", name, arguments),))

    engine.reply = reply
    rag = session(client, tools=TOOLS)
    assert rag.ask("Q?", [], functions={"read_file": lambda path: {"text": path}}).text == "Done."
    assert told in rag.messages[-2]["content"]


def test_calls_without_functions_and_without_end(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    engine.reply = reading(1000)
    rag = session(client, tools=TOOLS)
    with pytest.raises(EngineError, match="give functions"):
        rag.ask("Q?", [])
    with pytest.raises(EngineError, match="16 rounds"):
        rag.ask("Q?", [], functions={"read_file": lambda path: "x"})
    with pytest.raises(EngineError, match="in a stream"):
        "".join(rag.stream("Q?", []))
    assert rag.messages == ()


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]])
def test_an_answer_is_a_string_whatever_the_gateway_makes_of_it(content: object) -> None:
    """A refusal has no content, and some gateways send parts: what is sent again is a string."""
    said = reply_of({"choices": [{"message": {"role": "assistant", "content": content}}]})
    assert said.message["content"] == ("" if content is None else "Hello")


def test_an_answer_that_is_no_json_is_the_engines_error(client: openai.OpenAI, engine: SimulatedEngine) -> None:
    engine.fault = Respond(200, b"<html>busy</html>", "text/html")
    asking = session(client)
    with pytest.raises(EngineError, match=r"the answer is no JSON .*is the base URL"):
        asking.ask("Why?", [document(1)])
    assert asking.messages == ()
