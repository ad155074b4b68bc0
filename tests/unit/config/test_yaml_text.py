"""YAML text to plain values: YAML 1.2 scalars, places, no code."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgrpo.config.yaml_text import parse_document, parse_value, read_document
from mmgrpo.errors import ConfigError

NUMBERS = [
    ("1e-6", 1e-6),
    ("1E-6", 1e-6),
    ("1e6", 1e6),
    ("1.0e-6", 1e-6),
    (".5", 0.5),
    ("5.", 5.0),
    ("+.5e1", 5.0),
    ("-3", -3),
    ("1_000", 1000),
    ("1_000.5", 1000.5),
    ("010", 10),
    ("0o17", 15),
    ("0xff", 255),
]


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_numbers_are_read_as_yaml_1_2_reads_them(text, value):
    read = parse_value(text, source="t")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text", ["yes", "no", "on", "off", "Y", "n", "2024-01-01", "1:30", "1_", "_1", "e5", ".", "-"]
)
def test_these_are_text(text):
    if text == "-":
        text = "'-'"
    assert parse_value(text, source="t") == text.strip("'")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), ("null", None), ("~", None), ("", None), ('"1e-6"', "1e-6")]
)
def test_booleans_null_and_quoted_text(text, value):
    assert parse_value(text, source="t") is value or parse_value(text, source="t") == value


def test_environment_variables_are_not_expanded(monkeypatch):
    monkeypatch.setenv("SECRET", "leaked")
    assert parse_value("${SECRET}", source="t") == "${SECRET}"
    assert parse_value("$SECRET", source="t") == "$SECRET"


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.system [echo x]", "!!python/name:os.system", "!local x", "!!binary aGk="]
)
def test_tags_are_refused_and_nothing_runs(text):
    with pytest.raises(ConfigError, match="not allowed"):
        parse_document(f"model: {text}", source="t")


def test_a_plain_tag_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"Not of type int.\n  where: t:1:4"):
        parse_document("a: !!int x", source="t")


def test_every_key_and_item_has_its_place():
    document = parse_document("a:\n  b: 1\n  c: [2, {d: 3}]\n", source="f.yaml")
    places = {path: (mark.line, mark.column) for path, mark in document.marks.items() if path}
    assert places == {
        ("a",): (1, 1),
        ("a", "b"): (2, 3),
        ("a", "c"): (3, 3),
        ("a", "c", 0): (3, 7),
        ("a", "c", 1): (3, 10),
        ("a", "c", 1, "d"): (3, 11),
    }


def test_a_key_given_twice_is_refused_with_both_places():
    with pytest.raises(ConfigError, match=r"Key b is given twice.\n  where: f:2:3 and f:3:3"):
        parse_document("a:\n  b: 1\n  b: 2\n", source="f")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: b: c", "f:1:5"),
        ("a:\n\tb: 1", "f:2:1"),
        ("a: [1, 2", "f:1:9"),
        ("a: [1, 2\n", "f:2:1"),
        ("a: 'x", "f:1:6"),
        ("a: 1\n--- \nb: 2", "f:2:1"),
        ("a: *missing", "f:1:4"),
        ("  a: 1\n b: 2", "f:2:2"),
    ],
)
def test_a_syntax_error_shows_line_and_column(text, place):
    with pytest.raises(ConfigError, match=f"Not valid YAML.*\n  where: {place}"):
        parse_document(text, source="f")


@pytest.mark.parametrize("text", ["- 1\n- 2", "just text", "5"])
def test_the_top_level_must_be_a_mapping(text):
    with pytest.raises(ConfigError, match="Not a configuration"):
        parse_document(text, source="f")


def test_an_empty_text_is_an_empty_document():
    assert parse_document("# nothing\n", source="f").values == {}


def test_braces_without_quotes_are_explained():
    with pytest.raises(ConfigError, match="quotes"):
        parse_document("data:\n  template:\n    user: {{ prompt }}\n", source="f")


def test_anchors_work_and_bombs_do_not():
    assert parse_document("a: &x [1]\nb: *x", source="f").values == {"a": [1], "b": [1]}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
    )
    with pytest.raises(ConfigError, match="too large"):
        parse_document(bomb, source="f")
    with pytest.raises(ConfigError, match="too deeply"):
        parse_document("a: &a [*a]", source="f")
    with pytest.raises(ConfigError, match="too deeply"):
        parse_document("a: " + "[" * 5000, source="f")


def test_files_that_are_not_text_are_refused(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_document(file)
    file.write_bytes(b"a: \x00")
    with pytest.raises(ConfigError, match="control character"):
        read_document(file)
    file.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_document(file).values == {"a": 1}
    with pytest.raises(ConfigError, match="Cannot read"):
        read_document(tmp_path)


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_as_a_config_error(text):
    try:
        parse_document(text, source="f")
    except ConfigError as error:
        assert "f" in str(error)
