"""Rows become samples: columns, templates, chat messages, and media in the order of their placeholders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmgrpo.addresses import PathPolicy, locate
from mmgrpo.config.data import Columns, Template
from mmgrpo.data.samples import Samples, to_sample
from mmgrpo.data.sources import rows_from_python
from mmgrpo.data.synthetic.scenes import scene_rows
from mmgrpo.data.templates import fill
from mmgrpo.errors import ConfigError, DatasetError, MediaError
from mmgrpo.types import Sample

R1V = {"image": "a.png", "problem": "How many items are there?", "solution": "<answer> 3 </answer>", "hint": "look"}


def sample(row: dict, *, template: Template | None = None, places: Places | None = None, **columns: object) -> Sample:
    return to_sample(
        row, columns=Columns(**columns), template=template or Template(), where="data.jsonl:7", paths=places
    )


def test_r1v_rows_work_unchanged_with_the_picture_before_the_text():
    made = sample(R1V)
    assert made.messages == (
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many items are there?"}]},
    )
    assert [m.source for m in made.media] == [Path.cwd() / "a.png"]
    assert made.media[0].kind == "image"
    assert made.answer == "<answer> 3 </answer>"


def test_rewards_can_ask_for_every_column_but_the_picture():
    assert sample(R1V).extras == {key: R1V[key] for key in ("problem", "solution", "hint")}


@pytest.mark.parametrize("none", [None, [], "", " ", float("nan"), [None]])
def test_no_picture_is_no_placeholder(none: object):
    made = sample(R1V | {"image": none})
    assert made.media == ()
    assert made.messages == ({"role": "user", "content": "How many items are there?"},)


def test_a_list_of_pictures_keeps_its_order():
    made = sample(R1V | {"image": ["b.png", "a.png", "c.png"]})
    assert [m.source.name for m in made.media] == ["b.png", "a.png", "c.png"]
    assert [b["type"] for b in made.messages[0]["content"]] == ["image"] * 3 + ["text"]


@pytest.mark.parametrize("value", [Image.new("RGB", (2, 2)), np.zeros((2, 2, 3), np.uint8), b"bytes", {"bytes": b"x"}])
def test_pictures_that_are_no_paths_pass_through(value: object):
    made = sample(R1V | {"image": value})
    assert made.media[0].source is value
    assert made.media[0].name == "data.jsonl:7, column image"


def test_the_template_wraps_prompt_and_columns():
    template = Template(system="You count. {{ hint }}.", user="{{ prompt }} ({{ hint }}) {{ solution[-1] }}")
    made = sample(R1V, template=template)
    assert made.messages[0] == {"role": "system", "content": "You count. look."}
    assert made.messages[1]["content"][1]["text"] == "How many items are there? (look) >"


def test_the_truth_may_be_cut_out_of_its_column_and_an_empty_one_stays_empty():
    template = Template(answer="{{ answer.split('####')[-1].strip() }} {{ hint }}")
    assert sample(R1V | {"solution": "3 + 4 #### 7"}, template=template).answer == "7 look"
    assert sample(R1V, template=template, answer=None).answer is None
    with pytest.raises(DatasetError, match="'unit'"):
        sample(R1V, template=Template(answer="{{ unit }}"))
    with pytest.raises(ConfigError, match=r"data\.template\.answer"):
        sample(R1V, template=Template(answer="{{ answer"))


def test_braces_inside_values_are_text():
    made = sample(R1V | {"image": None, "problem": "What is {{ 1 + 1 }} {% raw %}?"})
    assert made.messages[0]["content"] == "What is {{ 1 + 1 }} {% raw %}?"


def test_the_template_cannot_reach_into_python():
    for attack in ("{{ prompt.__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ hint.append }}"):
        with pytest.raises((ConfigError, DatasetError)):
            sample(R1V, template=Template(user=attack))


@pytest.mark.parametrize(
    "fault", ["{{ 1 / 0 }}", "{% for i in range(10 ** 9) %}x{% endfor %}", "{{ 'a'.index('b') }}"]
)
def test_a_template_that_fails_names_its_key_and_the_row(fault: str):
    with pytest.raises(ConfigError, match=r"data\.template\.user, data.jsonl:7"):
        sample(R1V, template=Template(user=fault))


def test_a_malformed_template_names_its_key():
    with pytest.raises(ConfigError, match=r"data\.template\.user"):
        sample(R1V, template=Template(user="{{ prompt"))
    with pytest.raises(ConfigError, match=r"data\.template\.system"):
        sample(R1V, template=Template(system="{% if %}"))


def test_a_template_that_prints_nothing_is_refused_not_filled_with_none():
    with pytest.raises(DatasetError, match="hint is None"):
        sample(R1V | {"hint": None}, template=Template(user="{{ prompt }} {{ hint }}"))
    made = sample(R1V | {"hint": None, "image": None}, template=Template(user="{% if hint %}{{ hint }}{% endif %}."))
    assert made.messages[0]["content"] == "."


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ({"prompt": "question"}, "columns.prompt"),
        ({"image": "picture"}, "columns.image"),
        ({"answer": "truth"}, "columns.answer"),
        ({"id": "name"}, "columns.id"),
    ],
)
def test_a_missing_column_lists_the_columns_there_are(columns: dict, key: str):
    with pytest.raises(DatasetError, match="There is no column") as caught:
        sample(R1V, **columns)
    for part in (key, "'image', 'problem', 'solution', 'hint'", "data.jsonl:7"):
        assert part in str(caught.value)


def test_a_column_that_only_the_template_names_is_checked_too():
    with pytest.raises(DatasetError, match="'unit'"):
        sample(R1V, template=Template(user="{{ prompt }} {{ unit }}"))


def test_missing_columns_are_found_before_any_row_is_read():
    rows = rows_from_python([R1V])
    rows.read = lambda index: pytest.fail("no row is needed")  # type: ignore[method-assign]
    with pytest.raises(DatasetError, match="no column 'question'"):
        Samples(rows, columns=Columns(prompt="question"), template=Template())


def test_the_prompt_column_is_not_needed_when_the_template_does_not_use_it():
    made = sample({"image": None}, template=Template(user="Describe it."), answer=None)
    assert made.messages == ({"role": "user", "content": "Describe it."},)
    assert made.answer is None


@pytest.mark.parametrize("empty", [None, 5])
def test_a_prompt_that_is_no_text_names_the_row(empty: object):
    with pytest.raises(DatasetError, match=r"data\.jsonl:7"):
        sample(R1V | {"problem": empty})


def test_ids_come_from_their_column_or_from_the_row_number():
    rows = rows_from_python([R1V | {"name": "x"}, R1V | {"name": None}])
    assert [s.id for s in Samples(rows, columns=Columns(), template=Template())] == ["0", "1"]
    assert [s.id for s in Samples(rows, columns=Columns(id="name"), template=Template())] == ["x", "1"]


def test_the_columns_are_known_though_the_first_row_cannot_be_read():
    rows = rows_from_python([{"problem": None, "solution": "1", "note": 1}, {"problem": "?", "solution": "1"}])
    assert Samples(rows, columns=Columns(), template=Template()).columns == ("problem", "solution", "note")


def test_samples_of_scenes_are_lazy_and_agree_with_their_rows():
    rows = scene_rows(10**6, seed=2)
    made = Samples(rows, columns=Columns(), template=Template())
    assert made[5].answer == rows[5]["solution"]
    assert made[5].media[0].source.tobytes() == rows[5]["image"].tobytes()
    assert made[-1].id == "scene-2-999999"
    assert [s.id for s in made[3:5]] == ["scene-2-3", "scene-2-4"]


# Chat messages


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "First"}, {"type": "image"}, {"type": "text", "text": "?"}]},
]


def test_chat_messages_with_placeholders_are_taken_as_they_are():
    made = sample(R1V | {"problem": CHAT})
    assert list(made.messages) == CHAT
    assert len(made.media) == 1


def test_arrow_fills_blocks_with_none_keys_and_they_are_dropped():
    block = [{"type": "image", "text": None}, {"type": "text", "text": "?", "image": None}]
    made = sample(R1V | {"problem": [{"role": "user", "content": block, "name": None}]})
    assert made.messages == ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]},)


def test_without_any_placeholder_the_pictures_stand_before_the_first_user_text():
    made = sample(R1V | {"problem": [{"role": "user", "content": "Look."}], "image": ["a.png", "b.png"]})
    assert [b["type"] for b in made.messages[0]["content"]] == ["image", "image", "text"]


def test_media_follow_the_order_of_their_placeholders():
    talk = [
        {"role": "user", "content": [{"type": "image", "image": "own.png"}, {"type": "image"}]},
        {"role": "assistant", "content": "I see."},
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "?"}, {"type": "image", "path": "z.png"}],
        },
    ]
    made = sample(R1V | {"problem": talk, "image": ["1.png", "2.png"]})
    assert [m.source.name for m in made.media] == ["own.png", "1.png", "2.png", "z.png"]
    assert made.messages[0]["content"] == [{"type": "image"}, {"type": "image"}]


@pytest.mark.parametrize("pictures", [[], ["a.png", "b.png"]])
def test_placeholders_that_do_not_match_the_pictures_are_refused(pictures: list[str]):
    with pytest.raises(DatasetError, match="do not match") as caught:
        sample(R1V | {"problem": CHAT, "image": pictures})
    assert "data.jsonl:7" in str(caught.value)


def test_the_system_template_gives_way_to_the_rows_own_system_message():
    made = sample(R1V | {"problem": CHAT}, template=Template(system="From the YAML."))
    assert [m["role"] for m in made.messages] == ["system", "user"]
    assert made.messages[0]["content"] == "Be brief."
    made = sample(R1V | {"problem": CHAT[1:]}, template=Template(system="From the YAML."))
    assert made.messages[0] == {"role": "system", "content": "From the YAML."}


def test_the_user_template_wraps_the_last_user_text_of_a_chat():
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    made = sample(R1V | {"problem": talk, "image": None}, template=Template(user="<{{ prompt }}>"))
    assert [m["content"] for m in made.messages] == ["one", "1", "<two>"]


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["text"],
        [{"content": "no role"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "smell"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
        [{"role": "system", "content": "alone"}],
    ],
)
def test_malformed_conversations_are_refused_with_their_row(wrong: list):
    with pytest.raises(DatasetError, match=r"data\.jsonl:7"):
        sample(R1V | {"problem": wrong, "image": None})


# Paths


def test_relative_paths_start_from_the_base(tmp_path):
    assert locate("img/x.png", PathPolicy(base=tmp_path), where="w") == tmp_path / "img/x.png"
    assert locate("./img/../x.png", PathPolicy(base=tmp_path), where="w") == tmp_path / "x.png"


@pytest.mark.parametrize("climb", ["../x.png", "a/../../x.png", "../../../../etc/hostname"])
def test_a_relative_path_may_not_leave_its_base(climb: str, tmp_path):
    with pytest.raises(MediaError, match="climbs out") as caught:
        locate(climb, PathPolicy(base=tmp_path), where="data.jsonl:7, column image")
    assert "data.jsonl:7" in str(caught.value)


def test_absolute_paths_are_read_unless_forbidden(tmp_path):
    path = str(tmp_path / "x.png")
    assert locate(path, PathPolicy(base=Path("/elsewhere")), where="w") == Path(path)
    assert locate("file://" + path, PathPolicy(base=None), where="w") == Path(path)
    with pytest.raises(MediaError, match="absolute"):
        locate(path, PathPolicy(base=tmp_path, allow_absolute=False), where="w")


def test_with_a_root_nothing_outside_it_is_read(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside.png"
    root.mkdir()
    outside.write_bytes(b"x")
    (root / "link.png").symlink_to(outside)
    inside = PathPolicy(base=root, confined=True)
    assert locate(str(root / "a.png"), inside, where="w") == root / "a.png"
    for path in (str(outside), "file://" + str(outside), "link.png", "../outside.png"):
        held = [{key: path} for key in ("path", "bytes", "frames", "video")]
        for value in (path, *held, [path], [held[0]], {"frames": [path]}, {"path": None, "video": path, "fps": 2.0}):
            with pytest.raises(MediaError):
                locate(value, inside, where="w")


def test_file_addresses_are_unquoted_and_plain_paths_are_not(tmp_path):
    places = PathPolicy(base=tmp_path)
    assert locate("file:///a%20b/ü.png", places, where="w") == Path("/a b/ü.png")
    assert locate("a%20b.png", places, where="w") == tmp_path / "a%20b.png"
    assert locate("图 1.PNG", places, where="w") == tmp_path / "图 1.PNG"


def test_a_path_inside_a_dictionary_is_found_too(tmp_path):
    assert locate({"bytes": None, "path": "x.png"}, PathPolicy(base=tmp_path), where="w") == tmp_path / "x.png"
    frames = {"frames": ["1.png", b"x"], "fps": 4.0}
    assert locate(frames, PathPolicy(base=tmp_path), where="w") == {"frames": [tmp_path / "1.png", b"x"], "fps": 4.0}
    inline = {"bytes": b"x", "path": "../../x.png"}
    assert locate(inline, PathPolicy(base=tmp_path), where="w") is inline


def test_base64_and_data_addresses_are_no_paths_unless_such_a_file_exists(tmp_path):
    text = "iVBORw0KGgo" + "A" * 61
    places = PathPolicy(base=tmp_path)
    assert locate(text, places, where="w") == f"data:;base64,{text}"
    assert locate("data:image/png;base64," + text, places, where="w").startswith("data:")
    assert locate("A" * 5000, places, where="w") == "data:;base64," + "A" * 5000
    (tmp_path / text).write_bytes(b"x")
    assert locate(text, places, where="w") == tmp_path / text


def test_rows_without_a_folder_may_not_name_relative_paths():
    with pytest.raises(MediaError, match="media_root"):
        locate("x.png", PathPolicy(base=None), where="w")


def test_nul_characters_are_refused(tmp_path):
    with pytest.raises(MediaError, match="NUL"):
        locate("x\0.png", PathPolicy(base=tmp_path), where="w")


@given(st.text(max_size=60))
def test_any_text_as_a_path_stays_below_the_base_or_is_refused(text: str):
    base = Path("/data/base")
    try:
        found = locate(text, PathPolicy(base=base, allow_absolute=False), where="w")
    except MediaError:
        return
    assert found == text or Path(found).is_relative_to(base)


@given(st.text(max_size=40))
def test_any_value_is_inserted_as_it_is(text: str):
    assert fill("[{{ v }}]", {"v": text}, key="k", where="w") == f"[{text}]"
