"""Pages that tell what the code says, too, say the same: the loop, the errors, the families, the folders."""

import inspect
import re
import textwrap
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo import errors, trainer
from mmgrpo.policy.families.registry import all_families

ROOT = Path(mmgrpo.__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def outline(text):
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("number", "function"), [(0, "train_step"), (1, "collect")])
def test_the_sentence_is_told_as_it_stands(number, function):
    told = outline(blocks(page("concepts.md"), "python")[number])
    stands = outline(inspect.getsource(getattr(trainer, function)))
    start = stands.index(told[0])
    assert stands[start : start + len(told)] == told


def test_the_tree_of_errors_is_the_one_in_the_code():
    tree = blocks(page("errors.md"), "text")[0].strip()
    assert tree in textwrap.dedent(errors.__doc__.split("\n\n")[1])
    named = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert named == set(re.findall(r"\w+Error|EngineUnavailable|PromptTooLong", tree)) - {"ValueError", "RuntimeError"}


def test_every_family_is_named_with_its_layout():
    rows = [line for line in page("families.md").splitlines() if line.startswith("| `")]
    told = {name: row for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    families = {family.name: family for family in all_families()}
    assert set(told) == set(families)
    for name, family in families.items():
        cells = [cell.strip() for cell in told[name].split("|")]
        assert cells[4] == {"packed": "packed", "unpacked": "rows"}[family.layout], name
        assert (cells[5] == "none") == (family.tiny is None), name
        words = {"image": "pictures", "video": "clips", "audio": "sounds"}
        assert {word for word in words.values() if word in cells[3]} == {words[kind] for kind in family.kinds}, name


def test_the_index_names_every_page():
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\((\w+\.md)\)", page("README.md"))) == pages


def test_the_tree_in_the_readme_names_every_folder():
    tree = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "text")[-1]
    folders = {path.parent.name for path in (ROOT / "mmgrpo").glob("*/__init__.py")}
    assert folders - set(re.findall(r"(\w+)/", tree)) == set()


def test_every_link_between_pages_leads_somewhere():
    broken = [
        (path.name, link)
        for path in [*DOCS.glob("*.md"), *ROOT.glob("*.md")]
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", path.read_text(encoding="utf-8"))
        if not (path.parent / link).exists()
    ]
    assert broken == []


def test_the_readme_is_short_and_its_first_yaml_shorter():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(blocks(text, "yaml")[0].splitlines()) <= 12
