"""The words of an annotation mean one text that stands in full above: for a reader who knows nothing but words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.ordinary.support import Proxy, calls, chat, note, notes, reads, result, row, said, system, user, words

from prefixpilot.apis.base import Segment
from prefixpilot.formats.base import NoEdges, Region
from prefixpilot.formats.catalogue import RECOGNISERS, regions

A, B, C = (words(seed) for seed in "ABC")
CROWNS = f"Rule 0 of X says that the fee is 3 crowns.\n{words('R')}"
EUROS = f"Rule 0 of X says that the fee is 3 euros.\n{words('R')}"
SAME = re.compile(r"\[Unchanged: same text as (.*) above\.\]", re.DOTALL)


def real(segment: Segment) -> tuple[Region, ...]:
    return regions(segment, RECOGNISERS, NoEdges())


def named(sent: dict[str, Any], message: int) -> list[str]:
    """The names in the annotations of a message."""
    return re.findall(r"\[Unchanged: same text as (.*?) above\.\]", sent["messages"][message]["content"])


def flowise(*bodies: str) -> str:
    docs = "\n".join(f"<doc id='{i}'>{body}</doc>" for i, body in enumerate(bodies))
    return f"You speak.\n------------\n{docs}\n------------\n"


def ragflow(number: int, title: str, body: str) -> str:
    return f"ID: {number}\n├── Title: {title}\n└── Content:\n{body}\n"


# -- labels


def test_a_number_alone_is_no_name() -> None:
    body = chat(system(flowise(A, B)), user("go"), *reads("1", "a.md", A))
    proxy = Proxy(real)
    assert proxy.ordinary.recognise(proxy.read(body).messages[0].segments[0])[0].units[0].label == "0"
    assert named(proxy.send(body), 3) == [f'the text that begins "{" ".join(A.split()[:8])}"']


def test_a_label_that_stands_on_another_text_too_is_not_enough() -> None:
    """The recogniser takes the ID for the label there, so that the title is known from the characters alone."""
    listed = "\n------\n\n".join([ragflow(0, "rules-0.md", EUROS), ragflow(1, "rules-1.md", B)])
    hit = notes(("rules-0.md", CROWNS))
    body = chat(system(listed), user(hit), said("ok"), user(notes(("again", CROWNS))))
    assert named(Proxy().send(body), 3) == [
        f'rules-0.md that begins "{" ".join(CROWNS.split()[:16])}"',
    ]


@pytest.mark.parametrize("where", ["question", "answer", "call", "documents"])
def test_a_label_that_is_said_elsewhere_is_not_enough(where: str) -> None:
    words_of = "See fees.pdf." if where in ("question", "answer") else ""
    messages = [user(notes(("fees.pdf", A)) + (words_of if where == "question" else ""))]
    messages += [said(words_of if where == "answer" else "ok")]
    if where == "call":
        messages += [user("go"), *reads("1", "fees.pdf", B)]
    body = chat(*messages, user(notes(("again", A))))
    if where == "documents":
        body["documents"] = [{"title": "fees.pdf", "text": B}]
    name = f'fees.pdf that begins "{" ".join(A.split()[:8])}"'
    assert named(Proxy().send(body), len(messages)) == [name]


def test_a_label_is_no_part_of_a_longer_word() -> None:
    first = notes(("Source 1", A), ("Source 12", B))
    assert named(Proxy().send(chat(user(first), said("ok"), user(notes(("x", A), ("y", B))))), 2) == [
        "Source 1",
        "Source 12",
    ]


def test_a_label_that_stands_nowhere_is_no_name() -> None:
    """The label of a row is made of its number."""
    text = " ".join(A.split())
    first = calls(("1", "s", "{}")), result("1", f"[{row(1, text)}]")
    second = calls(("2", "s", '{"q": 1}')), result("2", f"[{row(1, text)}, {row(2, B)}]")
    sent = json.loads(Proxy().send(chat(user("go"), *first, *second))["messages"][4]["content"])
    name = f'the text that begins "{" ".join(A.split()[:8])}"'
    assert sent[0] == {"n": 1, "text": f"[Unchanged: same text as {name} above.]"}


# -- opening words


def test_opening_words_that_a_labelled_text_has_too_are_followed_by_more() -> None:
    retrieved = f"Source: {{'source': 'r.md'}}\nContent: {EUROS}"
    plain = notes(("0", CROWNS))
    body = chat(user(plain), calls(("1", "retrieve", "{}")), result("1", retrieved), user(notes(("y", CROWNS))))
    assert named(Proxy().send(body), 3) == [f'the text that begins "{" ".join(CROWNS.split()[:16])}"']


def test_opening_words_inside_a_json_text_count() -> None:
    """Written there with escapes, in ASCII."""
    early = "Straße 1\ngeht über den Berg, sagt man,"
    own, other = f"{early} nach Osten.\n{A}", f"{early} nach Westen.\n{B}"
    body = chat(
        user(notes(("0", own))), calls(("1", "s", "{}")), result("1", json.dumps({"t": other})), user(notes(("1", own)))
    )
    assert named(Proxy().send(body), 3) == [f'the text that begins "{" ".join(own.split()[:16])}"']


def test_a_text_that_another_one_holds_has_no_opening_words_of_its_own() -> None:
    body = chat(user(notes(("0", A), ("1", f"{B}\n{A}"))), said("ok"), user(notes(("2", A))))
    assert Proxy(partial="off").send(body) == body


def test_opening_words_of_a_script_without_spaces() -> None:
    text = "".join(chr(0x4E00 + i * 37 % 2000) for i in range(300))
    sent = Proxy().send(chat(user(note("1", text)), said("ok"), user(note("2", text))))
    assert named(sent, 2) == [f'the text that begins "{text[:80]}"']


# -- calls


def test_the_latest_result_is_a_name_only_while_it_stands_in_full() -> None:
    body = chat(user("go"), *reads("1", "a.md", A), *reads("2", "a.md", A), user(notes(("x", A))))
    sent = Proxy().send(body)
    assert named(sent, 4) == ['the latest result of read_file({"path": "a.md"})']
    assert named(sent, 5) == [f'the text that begins "{" ".join(A.split()[:8])}"']


def test_the_latest_result_is_a_name_again_when_it_is_given_in_full_again() -> None:
    thrice = [message for i in "123" for message in reads(i, "a.md", A)]
    found = calls(("4", "search", "{}")), result("4", notes(("x", A), ("y", B)))
    sent = Proxy().send(chat(user("go"), *thrice, *found))
    assert sent["messages"][6]["content"] == A
    assert named(sent, 8) == ['the latest result of read_file({"path": "a.md"})']


def test_calls_that_differ_in_white_space_are_one_call() -> None:
    first = calls(("1", "f", '{"p": 1}')), result("1", A)
    second = calls(("2", "f", '{"p":1}')), result("2", B)
    sent = Proxy().send(chat(user("go"), *first, *second, user(notes(("x", A)))))
    assert sent["messages"][5]["content"] == notes(("x", A))


def test_one_of_two_strings_is_not_the_result() -> None:
    parts = [{"type": "text", "text": A}, {"type": "text", "text": B}]
    given = {"role": "tool", "tool_call_id": "1", "content": parts}
    sent = Proxy().send(chat(user("go"), calls(("1", "f", "{}")), given, user(notes(("x", B)))))
    assert named(sent, 3) == [f'the text that begins "{" ".join(B.split()[:8])}"']


def test_a_call_with_long_arguments_is_named_by_the_words_of_its_result() -> None:
    long = json.dumps({"query": "q" * 300})
    first, second = (calls(("1", "f", long)), result("1", A)), (calls(("2", "f", long)), result("2", A))
    assert named(Proxy().send(chat(user("go"), *first, *second)), 4) == [
        f'the text that begins "{" ".join(A.split()[:8])}"'
    ]


# -- history


def test_words_that_come_later_take_no_name_away() -> None:
    """A name is resolved in what stands above it: the form of a known message stays."""
    proxy = Proxy()
    turns = [user(notes(("fees.pdf", A))), said("ok"), user(notes(("again", A)))]
    sent = proxy.send(chat(*turns))["messages"]
    assert named({"messages": sent}, 2) == ["fees.pdf"]
    more = chat(*turns, said("fees.pdf says"), user(notes(("fees.pdf", B))))
    assert proxy.send(more)["messages"][:3] == sent


def test_words_that_come_into_the_text_above_take_the_name_away() -> None:
    """The engine's cache is broken there anyway."""
    proxy = Proxy()
    turns = [user(notes(("fees.pdf", A))), said("ok"), user(notes(("again", A)))]
    proxy.send(chat(system("Hi."), *turns))
    changed = chat(system(notes(("fees.pdf", B))), *turns, said("ok"), user("Q"))
    assert proxy.send(changed)["messages"][3]["content"] == notes(("again", A))


def test_a_name_inside_of_a_message_is_looked_for_above_it_too() -> None:
    proxy = Proxy(order=False)
    opening = user(notes(("fees.pdf", A), ("again", A)))
    assert named(proxy.send(chat(system("Hi."), opening)), 1) == ["fees.pdf"]
    changed = chat(system("See fees.pdf."), opening, said("ok"), user("Q"))
    assert proxy.send(changed) == changed


# -- a reader who knows nothing but words


class Text(NamedTuple):
    """A text as a reader meets it: what stands around it, and whether it is there in full."""

    head: str
    body: str
    full: bool


class Reader:
    """Finds what a name means in a forwarded prompt, from the format for tests and the words alone."""

    def __init__(self) -> None:
        self.texts: list[Text] = []
        self.prose: list[str] = []
        self.results: list[tuple[str, str, bool]] = []

    def read(self, name: str) -> set[str]:
        """The texts in full that a name may mean."""
        call = re.fullmatch(r"the latest result of (.*)", name)
        if call is not None:
            _, body, full = next(known for known in reversed(self.results) if known[0] == call[1])
            return {body} if full else set()
        both = re.fullmatch(r'(.*) that begins "(.*)"', name)
        label, opening = (name, "") if both is None else (both[1], both[2])
        if label == "the text":
            label = ""
        whole = re.compile(rf"(?<!\w){re.escape(label)}(?!\w)")
        assert not label or re.search("[a-z]", label), f"{name!r} is a bare number"
        if opening == "":
            assert not any(whole.search(prose) for prose in self.prose), f"{name!r} stands in prose too"
        bearers = [text for text in self.texts if not label or whole.search(text.head)]
        found = [text for text in bearers if " ".join(text.body.split()).startswith(opening)]
        assert any(text.full for text in found), f"{name!r} stands on no text in full"
        return {text.body for text in found}


LABELS = ("0", "1", "fees.pdf", "map of fees.pdf", "Source 1", "Source 12")
START = "The fee of this year is due in"
BODIES = (
    *(f"{START} {end}\n{words('same', 30)}\n{words(end, 20)}" for end in ("May", "June", "July, or")),
    f"{START} May\n{words('same', 30)}\nbut not the same",
    words("other", 40),
    f"{words('front', 30)}\n{START} May",
)

texts = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(BODIES)), min_size=1, max_size=4)
messages = st.one_of(
    st.tuples(st.just("user"), texts),
    st.tuples(st.just("prose"), st.sampled_from(["See fees.pdf.", f"{START} when?", "Source 1 is right."])),
    st.tuples(st.just("read"), st.tuples(st.sampled_from(["fees.pdf", "x"]), st.sampled_from(BODIES))),
)


def prompt(script: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    sent: list[dict[str, Any]] = [user("go")]
    for i, (kind, what) in enumerate(script):
        if kind == "user":
            sent.append(user(notes(*what)))
        elif kind == "prose":
            sent.append(said(what))
        else:
            sent += reads(str(i), *what)
    return chat(*sent)


@settings(max_examples=150, deadline=None)
@given(st.lists(messages, min_size=2, max_size=8), st.booleans())
def test_every_name_means_the_text_that_it_stands_for(script: list[tuple[str, Any]], grows: bool) -> None:
    """In one request, and in a conversation that grows to it: the forms of older messages are recalled."""
    proxy = Proxy(partial="off", order=False)
    body = prompt(script)
    if grows:
        for i, message in enumerate(body["messages"]):
            if message["role"] != "assistant":
                proxy.send({**body, "messages": body["messages"][: i + 1]})
    sent = proxy.send(body)
    reader = Reader()
    made: dict[str, str] = {}
    for own, ours in zip(body["messages"], sent["messages"], strict=True):
        for call in own.get("tool_calls", ()):
            function = call["function"]
            made[call["id"]] = f"{function['name']}({function['arguments']})"
            reader.prose.append(function["arguments"])
        if own["role"] == "tool":
            repeat = SAME.fullmatch(ours["content"])
            if repeat is not None:
                assert reader.read(repeat[1]) == {own["content"]}
            reader.texts.append(Text("", own["content"], repeat is None))
            reader.results.append((made[own["tool_call_id"]], own["content"], repeat is None))
        elif own["role"] == "user":
            pattern = re.compile(r"<note name=\"(.*)\">\n((?:.|\n)*?)\n</note>")
            for theirs, kept in zip(pattern.findall(own["content"]), pattern.findall(ours["content"]), strict=True):
                repeat = SAME.fullmatch(kept[1])
                if repeat is not None:
                    assert reader.read(repeat[1]) == {theirs[1]}
                reader.texts.append(Text(theirs[0], theirs[1], repeat is None))
        elif own["content"]:
            reader.prose.append(own["content"])
