"""Rows of every form that people have load unchanged: the shipped sample rows, and the rules beyond them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.formats.blocks import plain_block
from mmgrpo.data.formats.reading import list_media
from mmgrpo.data.samples import Samples, to_sample
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import DatasetError, MediaError
from mmgrpo.types import Sample

SHIPPED = Path(__file__).parents[2] / "data_samples"
FORMS = {
    "r1v": "r1v",
    "r1v_eval": "r1v",
    "trl": "trl",
    "swift": "swift",
    "swift_query": "swift",
    "easyr1": "easyr1",
    "easyr1_video": "easyr1",
    "vlm_r1": "vlm_r1",
    "sharegpt": "sharegpt",
    "openai": "openai",
}
QUESTION = "How many items are there in the image?"


def shipped(name: str, *, template: Template | None = None, columns: Columns | None = None, **keys: Any) -> Samples:
    rows = open_rows(Files(path=f"{name}.jsonl", **keys), base=SHIPPED)
    return Samples(rows, columns=columns or Columns(), template=template or Template())


def one(row: dict[str, Any], **columns: Any) -> Sample:
    return to_sample(row, columns=Columns(**columns), template=Template(), where="rows.jsonl:1")


def shape(sample: Sample) -> list[str]:
    """Text and placeholders of the last user message, in order."""
    content = sample.messages[-1]["content"]
    return [content] if isinstance(content, str) else [b.get("text", f"({b['type']})") for b in content]


def sources(sample: Sample) -> list[str]:
    return [Path(m.source).name for m in sample.media]


@pytest.mark.parametrize(("name", "form"), FORMS.items())
def test_every_form_is_told_by_its_columns_and_every_shipped_row_loads(name: str, form: str):
    samples = shipped(name)
    assert samples.form.name == form
    for sample in samples:
        assert sample.messages[-1]["role"] == "user"
        for medium in sample.media:
            assert not isinstance(medium.source, Path) or medium.source.is_file()


@pytest.mark.parametrize("name", [name for name in FORMS if name != "r1v_eval"])
def test_a_form_that_is_said_reads_like_one_that_is_told(name: str):
    assert list(shipped(name, format=FORMS[name])) == list(shipped(name))


def test_the_same_question_in_every_form_is_the_same_prompt():
    for name in ("r1v", "r1v_eval", "swift_query", "easyr1", "vlm_r1"):
        sample = shipped(name)[0]
        assert shape(sample) == ["(image)", QUESTION], name
        assert sources(sample) == ["three.png"], name


# TRL


def test_trl_rows_hold_text_messages_or_media_in_their_blocks():
    chat, text, own = shipped("trl")
    assert [m["role"] for m in chat.messages] == ["system", "user"]
    assert shape(chat) == shape(text) == shape(own) == ["(image)", QUESTION]
    assert [sources(s) for s in (chat, text, own)] == [["three.png"], ["five.png"], ["five.png"]]
    assert [s.answer for s in (chat, text, own)] == ["3", "5", "5"]


def test_trl_needs_no_answer_column():
    assert one({"prompt": "Write a poem."}).answer is None


# ms-swift


def test_swift_tags_stand_where_they_are_written():
    rows = shipped("swift")
    assert shape(rows[1]) == ["Which picture has more items, ", "(image)", " or ", "(image)", "?"]
    assert sources(rows[1]) == ["three.png", "five.png"]
    assert shape(rows[2]) == ["(audio)", "How many beeps?"]


def test_swift_tags_that_are_missing_stand_before_the_first_user_message():
    assert shape(shipped("swift")[3]) == ["(video)", "How often does it flash?"]
    row = {
        "messages": [{"role": "user", "content": "<image>first"}, {"role": "assistant", "content": "ok"},
                     {"role": "user", "content": "last"}],
        "images": ["a.png", "b.png"], "audios": ["c.wav"],
    }  # fmt: skip
    sample = one(row)
    assert [b.get("type") for b in sample.messages[0]["content"]] == ["image", "audio", "image", "text"]
    assert [m.kind for m in sample.media] == ["image", "audio", "image"]
    assert sources(sample) == ["a.png", "c.wav", "b.png"]


def test_swift_drops_the_last_assistant_turn_and_keeps_it_as_the_answer_unless_a_solution_says_it():
    sample = shipped("swift")[1]
    assert [m["role"] for m in sample.messages] == ["user"]
    assert sample.answer == "the second"
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "no"}]
    assert one({"messages": chat, "solution": "yes"}).answer == "yes"


def test_swift_columns_of_its_own_reach_the_rewards():
    sample = shipped("swift")[4]
    assert (sample.extras["nums"], sample.extras["target"], sample.answer) == ([1, 2, 3], 6, None)
    assert {"images", "videos", "audios"} & set(sample.extras) == set()


@pytest.mark.parametrize("query", ["query", "input", "instruction", "question"])
@pytest.mark.parametrize("response", ["response", "answer", "output", "target", "answers", "completion"])
def test_swift_queries_and_responses_have_many_names(query: str, response: str):
    sample = one({query: "1 + 1?", response: "2"})
    assert (shape(sample), sample.answer) == (["1 + 1?"], "2")


def test_swift_system_column_is_the_system_message():
    sample = one({"messages": [{"role": "user", "content": "?"}], "system": "Be brief."})
    assert sample.messages[0] == {"role": "system", "content": "Be brief."}


def test_more_tags_than_media_are_refused_with_the_row():
    with pytest.raises(DatasetError, match="do not match") as caught:
        one({"messages": [{"role": "user", "content": "<image><image>?"}], "images": ["a.png"]})
    assert "rows.jsonl:1" in str(caught.value)


def test_tags_inside_what_the_assistant_said_are_text():
    chat = [
        {"role": "user", "content": "<image>?"},
        {"role": "assistant", "content": "an <image>"},
        {"role": "user", "content": "!"},
    ]
    assert one({"messages": chat, "images": ["a.png"]}).messages[1]["content"] == "an <image>"


# EasyR1


def test_easyr1_takes_clips_and_lists_of_frames():
    clip, frames = shipped("easyr1_video")
    assert sources(clip) == ["flashes.gif"]
    assert [path.name for path in frames.media[0].source] == ["frame0.png", "frame2.png"]
    assert all(path.is_absolute() for path in frames.media[0].source)
    assert shape(frames) == ["(video)", "Is it bright first?"]


def test_the_template_is_around_the_whole_text_before_its_tags_are_cut():
    sample = shipped("easyr1", template=Template(user="Look. {{ prompt }} Use digits."))[1]
    assert shape(sample) == ["Look. Compare ", "(image)", " and ", "(image)", ". Use digits."]


# VLM-R1 and ShareGPT


def test_vlm_r1_rows_have_gpts_value_as_answer_and_what_their_rewards_ask_for():
    one_picture, two = shipped("vlm_r1", columns=Columns(id="id"))
    assert (one_picture.id, one_picture.answer) == ("1", "3")
    assert one_picture.extras["solution"] == "<answer> 3 </answer>"
    assert one_picture.extras["problem"] == QUESTION
    assert shape(two) == ["(image)", "(image)", "Which has more?"]
    assert two.extras["accu_reward_method"] == "mcq"


@pytest.mark.parametrize("value", [3, [1, 2, 3, 4], '{"x": 1}'])
def test_vlm_r1_values_may_be_numbers_and_boxes(value: Any):
    talk = [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": value}]
    sample = one({"image": "a.png", "conversations": talk})
    assert sample.answer == value
    assert sample.extras["solution"] == f"<answer> {value} </answer>"


def test_sharegpt_keeps_the_turns_before_the_last_answer():
    sample = shipped("sharegpt")[0]
    assert [m["role"] for m in sample.messages] == ["system", "user", "assistant", "user"]
    assert sample.answer == "5"
    assert [b["type"] for b in sample.messages[1]["content"]] == ["image", "text"]


@pytest.mark.parametrize(
    "talk", ["text", [], [3], [{"from": "dog", "value": "woof"}], [{"from": "human", "value": 3}]]
)
def test_malformed_conversations_name_the_row(talk: Any):
    with pytest.raises(DatasetError, match=r"rows\.jsonl:1"):
        one({"conversations": talk})


# OpenAI


def test_openai_blocks_carry_their_media():
    inline, path, clip = shipped("openai")
    assert inline.media[0].source.startswith("data:image/png;base64,")
    assert shape(inline) == [QUESTION, "(image)"]
    assert sources(path) == ["five.png"]
    assert (clip.media[0].kind, sources(clip)) == ("video", ["flashes.gif"])
    assert [s.answer for s in (inline, path, clip)] == ["3", "5", "2"]


def test_openai_sound_is_a_data_address_of_its_format():
    data = base64.b64encode(b"RIFF").decode()
    block = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    assert plain_block(block) == {"type": "audio", "audio": f"data:audio/wav;base64,{data}"}


def test_anthropic_blocks_are_read_too():
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    assert plain_block(block) == {"type": "image", "image": "data:image/png;base64,AAAA"}


def test_an_openai_file_may_begin_with_rows_of_text():
    rows = [{"messages": [{"role": "user", "content": "Hello."}]}] * 3
    block = {"type": "image_url", "image_url": {"url": "a.png"}}
    rows.append({"messages": [{"role": "user", "content": [block]}]})
    samples = Samples(rows_from_python(rows), columns=Columns(), template=Template())
    assert samples.form.name == "openai"
    assert len(samples[3].media) == 1


# Columns


def test_named_columns_win_over_the_forms_own():
    row = {"prompt": "no", "question": "yes?", "pictures": ["a.png"], "solution": "no", "truth": "yes"}
    sample = one(row, prompt="question", image="pictures", answer="truth")
    assert (shape(sample), sample.answer, sources(sample)) == (["(image)", "yes?"], "yes", ["a.png"])


@pytest.mark.parametrize(("named", "there"), [("image", "images"), ("images", "image"), ("photo", "photos")])
def test_a_named_column_may_be_singular_or_plural(named: str, there: str):
    assert sources(one({"problem": "?", "solution": "1", there: "a.png"}, image=named)) == ["a.png"]


def test_two_filled_columns_of_one_kind_are_refused_and_a_hole_is_not():
    row = {"prompt": "?", "image": "a.png", "images": ["b.png"]}
    with pytest.raises(DatasetError, match="image and images"):
        one(row)
    assert sources(one(row | {"image": None})) == ["b.png"]
    assert sources(one(row, image="image")) == ["a.png"]


def test_a_column_that_looks_like_media_and_is_not_read_stops_the_run():
    jpeg = b"\xff\xd8\xff\xe0 and so on"
    for value in ("a/b.PNG", {"bytes": b"x", "path": None}, ["1.jpg"], jpeg, [jpeg], "data:image/png;base64,AAAA"):
        rows = rows_from_python([{"problem": "?", "solution": "1", "img": value}])
        with pytest.raises(DatasetError, match="'img' looks like images"):
            Samples(rows, columns=Columns(), template=Template())
        assert len(Samples(rows, columns=Columns(image=None), template=Template())[0].media) == 0
        assert len(Samples(rows, columns=Columns(image="img"), template=Template())[0].media) == 1
    rows = rows_from_python([{"problem": "?", "solution": "1", "take": {"bytes": b"fLaC", "path": None}}])
    with pytest.raises(DatasetError, match=r"data\.columns\.audio: take"):
        Samples(rows, columns=Columns(), template=Template())
    rows = rows_from_python([{"problem": "?", "solution": "1", "clip": "a.mp4"}])
    with pytest.raises(DatasetError, match=r"data\.columns\.video: clip"):
        Samples(rows, columns=Columns(), template=Template())


def test_rows_of_no_known_form_list_the_columns_of_questions():
    with pytest.raises(DatasetError, match="no known form") as caught:
        one({"alpha": 1})
    assert "messages" in str(caught.value)
    assert "'alpha'" in str(caught.value)


def test_a_form_that_lacks_its_columns_says_which(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"problem": "?"}), encoding="utf-8")
    rows = open_rows(Files(path="rows.jsonl", format="r1v"), base=tmp_path)
    with pytest.raises(DatasetError, match="no column of answers") as caught:
        Samples(rows, columns=Columns(), template=Template())
    assert "solution" in str(caught.value)
    assert Samples(rows, columns=Columns(answer=None), template=Template())[0].answer is None


# Values of media


def test_a_decoded_sound_keeps_its_rate():
    value = {"path": None, "array": [0.0, 0.5], "sampling_rate": 8000}
    medium = one({"problem": "?", "solution": "1", "audio": value}).media[0]
    assert (medium.kind, medium.rate) == ("audio", 8000.0)
    assert medium.source.dtype == np.float32


def test_lists_are_frames_sounds_or_several_media():
    assert [item.source for item in list_media(["a.jpg", "b.jpg"], "image")] == ["a.jpg", "b.jpg"]
    assert [item.source for item in list_media(["a.jpg", "b.jpg"], "video")] == [["a.jpg", "b.jpg"]]
    assert [item.source for item in list_media([["a.jpg"], "b.mp4"], "video")] == [["a.jpg"], "b.mp4"]
    assert [item.source for item in list_media([0.5, 1], "audio")] == [[0.5, 1]]
    assert [item.source for item in list_media({"bytes": b"x", "path": None}, "video")] == [
        {"bytes": b"x", "path": None}
    ]


@pytest.mark.parametrize("address", ["http://example.com/a.png", "HTTPS://example.com/a.png"])
def test_addresses_of_the_network_are_refused_unless_allowed(address: str):
    with pytest.raises(MediaError, match="allow_remote"):
        one({"problem": "?", "solution": "1", "image": address})


@given(st.lists(st.sampled_from(["<image>", "<audio>", "<video>", "word", " "]), max_size=8))
def test_each_tag_gets_the_next_medium_of_its_kind(pieces: list[str]):
    of_kind: dict[str, list[str]] = {
        kind: [f"{kind}{i}.x" for i in range(pieces.count(f"<{kind}>"))] for kind in ("image", "audio", "video")
    }
    row = {"messages": [{"role": "user", "content": "".join(pieces) + "?"}]}
    row |= {f"{kind}s": names for kind, names in of_kind.items()}
    sample = one(row)
    expected = [piece[1:-1] for piece in pieces if piece.startswith("<")]
    assert [m.kind for m in sample.media] == expected
    for kind, names in of_kind.items():
        assert [Path(m.source).name for m in sample.media if m.kind == kind] == names


def test_several_columns_of_pictures_are_one_list_in_the_order_named(tmp_path: Path):
    for name, shade in (("left", 10), ("right", 200)):
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(tmp_path / f"{name}.png")
    row = {"right": "right.png", "left": "left.png", "problem": "Same?", "solution": "no"}
    rows = rows_from_python([row, {**row, "right": None}], base=tmp_path)
    both = Samples(rows, columns=Columns(image=("left", "right")), template=Template())
    assert [Path(medium.source).name for medium in both[0].media] == ["left.png", "right.png"]
    assert [Path(medium.source).name for medium in both[1].media] == ["left.png"]
    with pytest.raises(DatasetError, match=r"no column 'middle'[\s\S]*data.columns.image"):
        Samples(rows, columns=Columns(image=("left", "middle")), template=Template())


def test_a_second_column_of_pictures_that_nobody_reads_is_told_once_for_a_source():
    picture = {"bytes": b"\x89PNG\r\n\x1a\n", "path": None}
    row = {"image": picture, "image_2": picture, "problem": "Same?", "solution": "no"}
    with pytest.warns(UserWarning, match=r"'image_2' holds images that no prompt shows.*\[image, image_2\]") as told:
        Samples(rows_from_python([row] * 3), columns=Columns(), template=Template())
    assert len(told) == 1
    Samples(rows_from_python([row]), columns=Columns(image=("image", "image_2")), template=Template())
