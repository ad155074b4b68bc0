"""README and docs tell the truth: YAML blocks and keys are in the schema, commands and Python blocks run.

Every fenced block of a document is checked. An HTML comment on the line before a block says more about it:

    <!-- norun: needs a GPU -->            its commands are only read (names, keys, files), not run
    <!-- run: mmgrpo train … -->           run this instead: the same thing at a size that fits a test (a rehearsal)
    <!-- yaml: data -->                    the YAML is a file of datasets_configs/, not a configuration
    <!-- continues -->                     the Python block goes on where the one before it ended

Blocks of ``console`` hold commands after ``$ `` and their output; all lines of ``bash`` and ``sh`` are commands.
``make test`` is never run (it is what runs this), ``make quickstart`` runs in ``.ci/run``. The commands and Python
blocks of one document run in its order, in one empty folder.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.cli.commands import COMMANDS
from mmgrpo.config.keys import all_keys, find_keys
from mmgrpo.config.layers import read_texts
from mmgrpo.config.load import load_config
from mmgrpo.config.schema import Config

ROOT = Path(mmgrpo.__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md", "datasets_configs/**/*.md")
    for path in ROOT.glob(pattern)
)
TINY = {"model": {"name": "tiny:qwen2_5_vl"}}
NOT_HERE = {"make test", "make quickstart"}
FILE_ENDINGS = {"py", "md", "yaml", "json", "jsonl", "csv", "parquet", "safetensors", "png", "txt", "toml"}
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```\s*$", re.M | re.S)
MARKER = re.compile(r"<!-- *(norun|run|yaml|continues)(?:: *((?:(?!-->).)*?))? *-->\s*\Z", re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    path: Path
    line: int
    language: str
    text: str
    marker: str
    told: str

    @property
    def place(self):
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self):
        return commands_of(self.language, self.text)


def blocks_of(path, text=None):
    text = path.read_text(encoding="utf-8") if text is None else text
    for match in FENCE.finditer(text):
        marker = MARKER.search(text[: match.start()])
        yield Block(
            path=path,
            line=text.count("\n", 0, match.start()) + 1,
            language=match["language"],
            text=re.sub(f"^{match['indent']}", "", match["text"], flags=re.M),
            marker=marker[1] if marker else "",
            told=(marker[2] or "").strip() if marker else "",
        )


def commands_of(language, text):
    """Give the commands of a block, without prompts, comments and output."""
    if language not in ("bash", "sh", "shell", "console"):
        return []
    lines = text.replace("\\\n", " ").splitlines()
    if language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    bare = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in lines]
    return [line for line in bare if line]


BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]


def listed(kind):
    chosen = [block for block in BLOCKS if kind(block)]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.place)


@listed(lambda block: block.language in ("yaml", "yml"))
def test_f06_every_yaml_block_is_valid(block, tmp_path):
    file = tmp_path / "block.yaml"
    file.write_text(block.text, encoding="utf-8")
    if block.marker == "yaml" and block.told == "data":
        load_config(None, {"data.config": str(file)}, base=TINY)
    else:
        load_config(file, base=TINY)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_f06_every_key_that_is_named_exists(path):
    unknown = [name for name in named_keys(path.read_text(encoding="utf-8")) if not find_keys(name.split("."))]
    assert unknown == []


def named_keys(text):
    """Find what looks like a dotted key: `train.num_steps`, `loss.beta=0.1`, `rewards.0.weight`."""
    for name in re.findall(r"`([a-z_]+(?:\.\w+)+)(?:=[^`]*)?`", text):
        first, *_, last = name.split(".")
        if first in Config.model_fields and last not in FILE_ENDINGS:
            yield name


@listed(lambda block: block.commands)
def test_every_command_names_what_exists(block):
    for command in [*block.commands, *([block.told] if block.marker == "run" else [])]:
        check_command(command, block.place)


def check_command(command, place):
    words = shlex.split(command)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if words[0] == "mmgrpo" and len(words) > 1 and not words[1].startswith("-"):
        assert words[1] in COMMANDS, f"{place}: there is no command {words[1]}"
        if not {"…", "..."} & set(words):
            arguments = COMMANDS[words[1]].parser(words[1]).parse_intermixed_args(words[2:])
            check_overrides(arguments, place)
    elif words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
        assert {word for word in words[1:] if "=" not in word} <= targets, f"{place}: {command}"


def check_overrides(arguments, place):
    config, overrides = getattr(arguments, "config", None), getattr(arguments, "overrides", [])
    if config and (ROOT / config).exists():
        load_config(ROOT / config, overrides)
    else:
        for path in read_texts(overrides).marks:
            assert find_keys(path), f"{place}: there is no key {'.'.join(map(str, path))}"


@listed(lambda block: block.marker in ("norun", "run"))
def test_a_block_that_is_not_run_as_it_stands_says_why_or_what_runs(block):
    assert len(block.told) > 3


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_stand_in_fenced_blocks_with_a_language(path):
    text = path.read_text(encoding="utf-8")
    bare = re.sub(FENCE, "", text)
    assert re.findall(r"^ {4,}(?:\$ )?(?:mmgrpo|make|pip|python) .*$", bare, re.M) == []
    assert text.count("```") % 2 == 0
    odd = [block.place for block in blocks_of(path) if re.search(r"^(\$ )?(mmgrpo|make) ", block.text, re.M)]
    assert [place for place in odd if not any(b.place == place and b.commands for b in BLOCKS)] == []


@listed(lambda block: block.language == "python")
def test_every_python_block_is_valid_python(block):
    compile(block.text, block.place, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_everything_in_a_document_runs(path, tmp_path):
    todo = list(steps_of([block for block in BLOCKS if block.path == path]))
    for place, words, where in todo:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            words,
            cwd=ROOT if where == "root" else tmp_path,
            env={**environment, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, f"{place}: {words[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def steps_of(blocks):
    """Yield (place, words, working folder) of all that a document asks to run."""
    python = []
    for block in blocks:
        if block.language == "python" and block.marker != "continues" and python:
            yield python_step(python)
            python = []
        if block.marker == "norun":
            continue
        if block.language == "python":
            python.append(block)
        for command in [block.told] if block.marker == "run" else block.commands:
            if command not in NOT_HERE:
                where = "root" if command.startswith("make ") else "folder"
                yield block.place, ["bash", "-euo", "pipefail", "-c", command], where
    if python:
        yield python_step(python)


def python_step(blocks):
    return blocks[0].place, [sys.executable, "-c", "\n".join(block.text for block in blocks)], "folder"


SAMPLE = """
<!-- norun: needs a GPU -->
```bash
mmgrpo train my.yaml \\
  loss.beta=0.1  # a comment
```

```console
$ make quickstart
It learned.
$ mmgrpo config my.yaml
```
<!-- run: mmgrpo config examples/quickstart.yaml -->
```bash
mmgrpo config my.yaml
```

```python
x = 1
```
<!-- continues -->
```python
print(x)
```
"""


def test_blocks_commands_and_markers_are_read():
    blocks = list(blocks_of(ROOT / "README.md", SAMPLE))
    assert [block.marker for block in blocks] == ["norun", "", "run", "", "continues"]
    assert [command.split() for command in blocks[0].commands] == [["mmgrpo", "train", "my.yaml", "loss.beta=0.1"]]
    assert blocks[1].commands == ["make quickstart", "mmgrpo config my.yaml"]
    steps = [(words[-1], where) for _, words, where in steps_of(blocks)]
    assert steps == [
        ("mmgrpo config my.yaml", "folder"),
        ("mmgrpo config examples/quickstart.yaml", "folder"),
        ("x = 1\n\nprint(x)\n", "folder"),
    ]


def test_what_is_wrong_in_a_document_is_found():
    assert list(named_keys("`train.num_stepz=3`, `rewards.0.weight`, `model.safetensors`, `os.path`")) == [
        "train.num_stepz",
        "rewards.0.weight",
    ]
    assert find_keys(["rewards", "0", "weight"])
    assert not find_keys(["train", "num_stepz"])
    for command in ("mmgrpo trane x.yaml", "mmgrpo train x.yaml loss.betaa=1", "make tests"):
        with pytest.raises(AssertionError):
            check_command(command, "here")
    assert {key.dotted for key in all_keys()} >= {"loss.beta"}
