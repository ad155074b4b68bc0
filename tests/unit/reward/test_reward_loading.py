from pathlib import Path

import pytest

from mmgrpo.config.paths import shipped_rewards
from mmgrpo.errors import ConfigError
from mmgrpo.reward.loading import load_reward


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(
        "import beside\n"
        "def red(completions): return [beside.VALUE] * len(completions)\n"
        "async def later(completions): return [1.0] * len(completions)\n"
        "class Long:\n"
        "    def __init__(self, limit): self.limit = limit\n"
        "    def __call__(self, completions): return [float(len(c) > self.limit) for c in completions]\n"
        "def scaled(completions, by): return [by] * len(completions)\n"
        "NUMBER = 3\n"
    )
    (tmp_path / "beside.py").write_text("VALUE = 0.5\n")
    return tmp_path


def test_a_function_of_a_file_is_found_beside_the_yaml(folder):
    reward = load_reward("mine.py:red", base=folder)
    assert reward.name == "red"
    assert reward.function(completions=["a"]) == [0.5]
    assert not reward.is_async
    assert load_reward("mine.py:later", base=folder).is_async


def test_the_yaml_folder_wins_over_the_working_folder(folder, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("cwd")
    (other / "mine.py").write_text("def red(completions): return [9.0]\n")
    (other / "only_here.py").write_text("def red(completions): return [7.0]\n")
    monkeypatch.chdir(other)
    assert load_reward("mine.py:red", base=folder).function(completions=["a"]) == [0.5]
    assert load_reward("only_here.py:red", base=folder).function(completions=["a"]) == [7.0]


@pytest.mark.parametrize("spec", ["rewards/format.py:answer_only", "format.py:answer_only"])
def test_shipped_rewards_are_found_from_anywhere(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_reward(spec, base=tmp_path).name == "answer_only"


def test_classes_take_args_and_functions_bind_them(folder):
    assert load_reward("mine.py:Long", base=folder, args={"limit": 2}).function(completions=["abc"]) == [1.0]
    bound = load_reward("mine.py:scaled", base=folder, args={"by": 2.0})
    assert bound.function(completions=["a"]) == [2.0]
    assert bound.name == "scaled"
    assert bound.asked.required == {"completions"}


def test_modules_and_objects():
    assert load_reward("mmgrpo.reward.answers:normalise", base=Path()).name == "normalise"

    def mine(completions):
        return [0.0]

    assert load_reward(mine, base=Path()).function is mine
    assert load_reward(lambda completions: [0.0], base=Path()).name == "lambda"


def test_files_beside_two_rewards_may_share_a_name(tmp_path):
    for folder, value in (("one", 1.0), ("two", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("import nearby\ndef f(completions): return [nearby.VALUE]\n")
        (tmp_path / folder / "nearby.py").write_text(f"VALUE = {value}\n")
    rewards = [load_reward("mine.py:f", base=tmp_path / folder) for folder in ("one", "two", "one")]
    assert [reward.function(completions=["a"]) for reward in rewards] == [[1.0], [2.0], [1.0]]


def test_a_changed_file_beside_a_reward_is_loaded_anew_and_an_unchanged_one_is_shared(tmp_path):
    (tmp_path / "nearby.py").write_text("VALUE = 1.0\n")
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text("import nearby\ndef f(completions): return nearby\n")
    first, second = (
        load_reward(f"{name}.py:f", base=tmp_path).function(completions=[]) for name in ("first", "second")
    )
    assert first is second
    (tmp_path / "nearby.py").write_text("VALUE = 22.0\n")
    for name in ("first", "second"):
        assert load_reward(f"{name}.py:f", base=tmp_path).function(completions=[]).VALUE == 22.0


def test_a_changed_file_is_loaded_anew(tmp_path):
    file = tmp_path / "edit.py"
    file.write_text("def f(completions): return [1.0]\n")
    assert load_reward("edit.py:f", base=tmp_path).function(completions=["a"]) == [1.0]
    file.write_text("def f(completions): return [2.25]\n")
    assert load_reward("edit.py:f", base=tmp_path).function(completions=["a"]) == [2.25]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere.py:f", ["nowhere.py", "does not exist", "clevr_counting.py"]),
        ("mine.py:rod", ["no reward 'rod'", "Long", "Did you mean red?"]),
        ("mine.py:NUMBER", ["callable", "int"]),
        ("no_such_module:f", ["no_such_module", "cannot be imported"]),
        ("just_a_name", ["just_a_name", "path/to/file.py:name"]),
        ("mine.py:Long", ["could not be built", "limit"]),
    ],
)
def test_what_cannot_be_loaded_says_why(folder, spec, words):
    with pytest.raises(ConfigError) as error:
        load_reward(spec, base=folder)
    for word in words:
        assert word in str(error.value)


def test_args_that_do_not_fit_are_refused(folder):
    with pytest.raises(ConfigError, match="could not be built"):
        load_reward("mine.py:red", base=folder, args={"by": 1})


def test_a_broken_file_names_its_line(tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\nraise ValueError('boom')\n")
    with pytest.raises(ConfigError, match=r"boom(.|\n)*broken.py:2"):
        load_reward("broken.py:f", base=tmp_path)
    (tmp_path / "syntax.py").write_text("x = 1\n\ndef f(:\n")
    with pytest.raises(ConfigError, match=r"syntax.py:3"):
        load_reward("syntax.py:f", base=tmp_path)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=r"SystemExit(.|\n)*leaves.py:2"):
        load_reward("leaves.py:f", base=tmp_path)


def test_positional_only_arguments_are_refused(tmp_path):
    (tmp_path / "p.py").write_text("def f(completions, /): return []\n")
    with pytest.raises(ConfigError, match="only by position"):
        load_reward("p.py:f", base=tmp_path)


def test_no_bare_name_is_left_behind(folder):
    import sys

    path = list(sys.path)
    load_reward("mine.py:red", base=folder)
    assert sys.path == path
    assert "mine" not in sys.modules
    assert "rewards" not in sys.modules
    assert shipped_rewards().name == "rewards"


def test_entry_points_are_found_by_their_name(monkeypatch):
    import importlib.metadata as metadata

    point = metadata.EntryPoint("plain", "mmgrpo.reward.answers:normalise", "mmgrpo.rewards")
    monkeypatch.setattr(metadata, "entry_points", lambda group: metadata.EntryPoints([point]))
    assert load_reward("plain", base=Path()).name == "normalise"
    with pytest.raises(ConfigError, match=r"\(plain\)"):
        load_reward("other", base=Path())
