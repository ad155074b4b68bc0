"""Rows of each form as people really write them: history, other names of roles, tags, blocks of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.data import Columns, Template
from mmgrpo.data.samples import Samples, to_sample
from mmgrpo.data.sources import rows_from_python
from mmgrpo.errors import DatasetError
from mmgrpo.types import Sample


def one(row: dict[str, Any], **columns: Any) -> Sample:
    return to_sample(row, columns=Columns(**columns), template=Template(), where="rows.jsonl:1")


def shape(sample: Sample, turn: int = -1) -> list[str]:
    """Text and placeholders of one message, in order."""
    content = sample.messages[turn]["content"]
    return [content] if isinstance(content, str) else [b.get("text", f"({b['type']})") for b in content]


def sources(sample: Sample) -> list[str]:
    return [Path(m.source).name for m in sample.media]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("prompt", ["<image>Count.", [user("<image>Count.")]], ids=["text", "messages"])
def test_tags_of_trl_rows_are_places_where_there_is_one_for_each_medium(prompt: Any):
    assert shape(one({"prompt": prompt, "images": ["a.png"]})) == ["(image)", "Count."]
    assert "<image>Count." in shape(one({"prompt": prompt, "images": []}))
    two = one({"prompt": prompt, "images": ["a.png", "b.png"]})
    assert shape(two) == ["(image)", "(image)", "<image>Count."]


def test_tags_beside_blocks_of_media_are_text():
    blocks = [{"type": "image"}, {"type": "text", "text": "What does <image> mean?"}]
    assert shape(one({"prompt": [user(blocks)], "images": ["a.png"]})) == ["(image)", "What does <image> mean?"]


def test_what_trl_rows_call_completion_is_the_truth():
    assert one({"prompt": "?", "completion": "3"}).answer == "3"
    assert one({"prompt": [user("?")], "completion": [{"role": "assistant", "content": "3"}]}).answer == "3"
    assert one({"prompt": "?", "completion": "no", "solution": "yes"}).answer == "yes"
    assert one({"prompt": "?", "response": "3"}).answer == "3"


@pytest.mark.parametrize(
    ("row", "asked"),
    [({"instruction": "Count.", "input": "1 2 3"}, "Count.\n1 2 3"),
     ({"instruction": "Count.", "input": ""}, "Count."), ({"instruction": "", "input": "1 2 3"}, "1 2 3"),
     ({"instruction": "Count.", "input": None}, "Count.")],
)  # fmt: skip
def test_an_instruction_is_asked_with_its_input(row: dict[str, Any], asked: str):
    sample = one(row | {"output": "3"})
    assert (shape(sample), sample.answer) == ([asked], "3")


def test_history_is_earlier_turns():
    row = {"query": "<image>And now?", "response": "4", "history": [["How many?", "3"]], "images": ["a.png"]}
    sample = one(row)
    assert [m["role"] for m in sample.messages] == ["user", "assistant", "user"]
    assert [shape(sample, i) for i in range(3)] == [["How many?"], ["3"], ["(image)", "And now?"]]
    assert one({"query": "?", "response": "4", "history": None}).messages == ({"role": "user", "content": "?"},)
    with pytest.raises(DatasetError, match="This is no history"):
        one({"query": "?", "response": "4", "history": ["How many?"]})


def test_roles_have_many_names():
    said = [("developer", "Be brief."), ("human", "?"), ("function_call", "f()"), ("observation", "5"), ("gpt", "5")]
    sample = one({"conversations": [{"from": name, "value": text} for name, text in said]})
    assert [m["role"] for m in sample.messages] == ["system", "user", "assistant", "tool"]
    assert sample.answer == "5"


@pytest.mark.parametrize(
    "block",
    [{"type": "image", "image_url": "a.png"}, {"type": "input_image", "image_url": "a.png"}, {"image": "a.png"},
     {"type": "image", "path": "a.png"}, {"type": "image", "url": "a.png"},
     {"type": "image", "image": {"path": "a.png"}},
     {"type": "image", "source": {"type": "url", "url": "a.png"}}, {"type": "image_url", "image_url": "a.png"}],
)  # fmt: skip
def test_blocks_of_other_tools_carry_their_media(block: dict[str, Any]):
    for row in (
        {"prompt": [user([block, {"text": "?"}])]},
        {"messages": [user([block, {"type": "text", "text": "?"}])]},
    ):
        sample = one(row | {"solution": "3"})
        assert (shape(sample), sources(sample)) == (["(image)", "?"], ["a.png"])


@pytest.mark.parametrize("prompt", ["", " \n", [user("")], [user([{"type": "text", "text": " "}])]])
def test_a_row_that_asks_nothing_is_refused(prompt: Any):
    with pytest.raises(DatasetError, match="The prompt is empty") as caught:
        one({"prompt": prompt, "solution": "3"})
    assert "rows.jsonl:1" in str(caught.value)


def test_media_without_words_are_a_prompt_where_they_may_ask_something():
    assert shape(one({"prompt": "", "audio": "a.wav"})) == ["(audio)", ""]
    assert shape(one({"messages": [user([{"type": "image"}])], "images": ["a.png"]})) == ["(image)"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_file_of_two_forms_says_so_and_what_to_do(turned: bool):
    rows = [{"problem": "?", "solution": "3"}, {"messages": [user("?")], "solution": "3"}]
    found = rows_from_python(rows[::-1] if turned else rows)
    with pytest.raises(DatasetError, match="The prompt is not text") as caught:
        list(Samples(found, columns=Columns(), template=Template()))
    assert "problem" in str(caught.value) and "data.train.mixture" in str(caught.value)


def test_a_row_of_another_form_is_named_where_the_form_was_said():
    rows = rows_from_python([{"conversations": None, "prompt": "?"}])
    rows.format = "sharegpt"
    with pytest.raises(DatasetError, match="This is not a conversation") as caught:
        list(Samples(rows, columns=Columns(), template=Template()))
    assert "data.train.mixture" in str(caught.value)


def test_a_sound_may_stand_under_audio_url():
    sample = one({"messages": [user([{"type": "audio", "audio_url": "a.wav"}])], "solution": "3"})
    assert (shape(sample), sources(sample)) == (["(audio)"], ["a.wav"])


def test_pictures_may_stand_in_a_later_turn_and_in_what_a_tool_said():
    turns = [
        user("<image>Zoom in."),
        {"role": "assistant", "content": "Here."},
        {"role": "tool", "content": "<image>"},
    ]
    sample = one({"messages": [*turns, user("Well?")], "images": ["a.png", "b.png"], "solution": "3"})
    assert [shape(sample, i) for i in (0, 2, 3)] == [["(image)", "Zoom in."], ["(image)"], ["Well?"]]
    assert sources(sample) == ["a.png", "b.png"]
