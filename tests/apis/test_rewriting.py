"""A prompt that is rewritten is the prompt of the body with the edits in it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.apis import API_OF_NAME
from prefixpilot.apis.rewriting import rewritten
from prefixpilot.jsontext import JsonText, Permute, SetText

words = st.text("ab \n\u00e9", max_size=6)
parts = st.lists(words.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3)
contents = st.one_of(words, parts)
tools = st.lists(st.sampled_from("abc"), unique=True, max_size=3).map(lambda names: [{"name": name} for name in names])


@st.composite
def bodies(draw: st.DrawFn, api: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "tools": draw(tools)}
    messages = [
        {"role": role, "content": draw(contents)} for role in draw(st.lists(st.sampled_from(["user", "assistant"])))
    ]
    if api == "messages":
        return {**body, "system": draw(contents), "messages": messages}
    if api == "responses":
        return {**body, "instructions": draw(words), "input": draw(st.one_of(words, st.just(messages)))}
    if api == "completions":
        return {**body, "prompt": draw(words)}
    return {**body, "messages": [{"role": "system", "content": draw(contents)}, *messages]}


@given(st.data(), st.sampled_from(sorted(API_OF_NAME)))
def test_it_reads_as_the_edited_body_does(data: st.DataObject, api: str) -> None:
    body = data.draw(bodies(api))
    prompt = API_OF_NAME[api].read(body)
    assert prompt is not None
    pointers = [segment.pointer for segment in prompt.segments()]
    chosen = data.draw(st.lists(st.sampled_from(pointers), unique=True)) if pointers else []
    texts = {pointer: data.draw(words) for pointer in chosen}
    order = data.draw(st.none() | st.permutations(range(len(body["tools"]))))
    edits = [SetText(pointer, text) for pointer, text in texts.items()]
    moved = [] if order is None else [Permute(("tools",), order)]
    edited = json.loads(JsonText.read(json.dumps(body).encode()).edited([*edits, *moved]))
    assert rewritten(prompt, texts, order) == API_OF_NAME[api].read(edited)
    assert json.loads(json.dumps(body)) == body
    if not texts and order is None:
        assert rewritten(prompt, texts, order) is prompt
