"""Forms of an agent's messages: nothing lost, whatever is cut; and the parts of an adapter that need no framework."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integrations.small_rag import DOCUMENTS

from prefixpilot import Constraints, ContextBlock, ContextPilot, PilotConfig, Templates
from prefixpilot.adapters.arranging import Arranger, checked, written
from prefixpilot.adapters.calls import plain
from prefixpilot.adapters.passages import Above, Form, Former, record_of, render
from prefixpilot.annotations import DEFAULT_TEMPLATES
from prefixpilot.errors import ConfigError

turns = st.lists(
    st.tuples(st.booleans(), st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=4)), min_size=1, max_size=6
)


def told(documents: list[str]) -> str:
    """As a tool tells what it found."""
    return "Found:\n" + "\n".join(f"{n}. source {len(text)}: {text}" for n, text in enumerate(documents))


@given(turns, st.sets(st.integers(0, 5)))
def test_every_document_of_what_is_left_stands_in_full_or_is_named(
    turns: list[tuple[bool, list[str]]], cut: set[int]
) -> None:
    former = Former(ContextPilot())
    forms: list[Form] = []
    texts: list[str] = []
    for is_tool, documents in turns:
        above = Above(forms, texts)
        content = told(documents) if is_tool else "Q?"
        form = former.inside(content, documents, above) if is_tool else former.in_front(content, documents, above)
        assert form is not None
        texts.append(content)
        forms.append(form)
    whole = list(render(forms, DEFAULT_TEMPLATES))
    assert all("".join(whole).count(text) == 1 for text in {text for _, found in turns for text in found})
    assert json.loads(json.dumps(forms)) == forms, "plain data"
    left = [i for i in range(len(turns)) if i not in cut]
    sent = list(render([forms[i] for i in left], DEFAULT_TEMPLATES))
    assert all(text in "".join(sent[: n + 1]) for n, i in enumerate(left) for text in turns[i][1])
    lines = "".join(f"{text}\n" for text in sent).split("\n")
    for i, line in enumerate(lines):
        _, refers, rest = line.partition("Please refer to ")
        if refers:
            assert any(above.startswith(rest.split("]")[0] + "]") for above in lines[:i]), line


@given(turns)
def test_what_was_sent_is_sent_again(turns: list[tuple[bool, list[str]]]) -> None:
    former = Former(ContextPilot())
    forms: list[Form] = []
    before: list[str] = []
    for _, documents in turns:
        forms.append(former.in_front("Q?", documents, Above(forms, ["Q?"] * len(forms))))
        sent = list(render(forms, DEFAULT_TEMPLATES))
        assert sent[:-1] == before
        before = sent


def test_a_tools_own_words_stay() -> None:
    documents = [DOCUMENTS[0], DOCUMENTS[1]]
    form = Former(ContextPilot()).inside(told(documents), documents, Above((), ()))
    assert form is not None
    (text,) = render([form], DEFAULT_TEMPLATES)
    for label in ("\n[Doc 1]\n", "\n[Doc 2]\n"):
        assert label in text
        text = text.replace(label, "")
    assert text == told(documents)


@pytest.mark.parametrize("documents", [[], ["short"], ["x" * 300]])
def test_a_result_in_which_no_document_is_found_is_left_alone(documents: list[str]) -> None:
    assert Former(ContextPilot()).inside("Nothing of short length was found.", documents, Above((), ())) is None


def test_a_document_is_not_named_by_a_label_that_stands_elsewhere() -> None:
    former = Former(ContextPilot())
    first = former.in_front("Q?", DOCUMENTS[:1], Above((), ["Q?"]))
    again = former.in_front("Q?", DOCUMENTS[:1], Above([first], ["Q?", "[Doc 1]\nis something else"]))
    assert "Please refer" not in "".join(render([first, again], DEFAULT_TEMPLATES))


def test_the_record_of_no_forms_is_a_new_conversation() -> None:
    assert record_of([]).turns == 0 and record_of([]).next_number == 1


# -- arranging


def test_texts_and_metadata_tell_the_same() -> None:
    templates = Templates(name="Quelle {number}", label="<{name}>")
    arranger = Arranger(ContextPilot(PilotConfig(templates=templates)))
    arranger.arrange([ContextBlock("A"), ContextBlock("B")])
    arranged = arranger.arrange([ContextBlock("B"), ContextBlock("A")])
    texts = ["B", "A"]
    in_order = [texts[position] for position in arranged.order]
    expected = "<Quelle 1>\nA\n\n<Quelle 2>\nB\n\n"
    assert written(in_order, map(arranged.metadata, range(2))).startswith(expected)
    rendered = "\n\n".join(arranged.text(place, text) for place, text in enumerate(in_order))
    assert rendered == written(in_order, map(arranged.metadata, range(2)))
    assert arranged.annotation is not None and rendered.endswith(arranged.annotation)


def test_scopes_share_nothing() -> None:
    pilot = ContextPilot()
    Arranger(pilot, "one").arrange([ContextBlock("A"), ContextBlock("B")])
    assert Arranger(pilot, "two").arrange([ContextBlock("B"), ContextBlock("A")]).order == (0, 1)
    assert Arranger(pilot, "one").arrange([ContextBlock("B"), ContextBlock("A")]).order == (1, 0)


def test_a_place_for_annotations_is_checked() -> None:
    wrong: Any = "nowhere"
    with pytest.raises(ConfigError, match="annotations"):
        checked(wrong)


# -- calls


def test_values_that_json_has_not_are_told_by_their_type() -> None:
    assert plain({"a": (1, None, True), "b": Constraints, "c": Constraints()}) == {
        "a": [1, None, True],
        "b": "prefixpilot.constraints.Constraints",
        "c": "prefixpilot.constraints.Constraints",
    }
