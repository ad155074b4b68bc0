"""Each key of the configuration is read by the program somewhere: none is taken and then ignored.

Read off the source, not run: ``alias.key`` counts where ``alias`` is known to hold the key's section: by its name, by
an annotation, or by an assignment from either.
"""

import ast
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.config.keys import all_keys

PACKAGE = Path(mmgrpo.__file__).resolve().parent
SOURCES = [
    file.read_text(encoding="utf-8")
    for file in sorted(PACKAGE.rglob("*.py"))
    if file.relative_to(PACKAGE).parts[0] != "config"
]
CHOOSES = {
    "data.config": "merged in when the configuration is loaded",
    "synthetic": "tells the sections of rows made in code apart",
    "package": "one package so far: any other word is refused",
}
"""Keys, or names of keys, that have done their work when the configuration is loaded."""
PROTOCOLS = {"LossSettings": "Loss"}
"""Sections that rooms below know by a protocol."""
AHEAD = set()
"""Keys whose reader lands next."""


def last_word(node):
    """The identifier at the end of ``a``, ``a.b`` or ``a.b[0]``; of ``a or b``, that of ``a``."""
    if isinstance(node, ast.BoolOp):
        return last_word(node.values[0])
    if isinstance(node, ast.Subscript | ast.Starred):
        return last_word(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def words_of(node):
    """All identifiers of an annotation, also where it is written as text."""
    text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
    names = {inner.id for inner in ast.walk(ast.parse(str(text))) if isinstance(inner, ast.Name)}
    return {PROTOCOLS.get(name, name) for name in names}


def annotated(tree):
    """Yield (name, classes) of arguments and variables that say what they hold."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, words_of(node.annotation)
        elif isinstance(node, ast.AnnAssign):
            yield last_word(node.target), words_of(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.name, words_of(node.returns)
        elif isinstance(node, ast.Call) and last_word(node.func) == "isinstance":
            yield last_word(node.args[0]), words_of(node.args[1])


def fields(tree):
    """Yield (name, classes) of the fields of all classes: whoever holds such an object may read them."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.ClassDef):
            yield from annotated(ast.Module([n for n in outer.body if isinstance(n, ast.AnnAssign)], []))


def assigned(tree):
    """Yield (name, name) of what is given a second name, by an assignment, a loop or a test."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                yield from ((last_word(new), last_word(old)) for new, old in pairs)
        elif isinstance(node, ast.For | ast.comprehension):
            yield last_word(node.target), last_word(node.iter)


def reads(tree):
    """Yield (alias, key) of every attribute that is read, and of ``getattr`` with names that stand in the file."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield last_word(node.value), node.attr
        elif isinstance(node, ast.Call) and last_word(node.func) == "getattr":
            yield from ((last_word(node.args[0]), text) for text in texts)


def keys_read(source, sections):
    """Find the keys that a file reads, as (section class, key).

    Args:
        source: The file's text.
        sections: Section classes by name, each with the words that it goes by in the YAML.
    """
    tree = ast.parse(source)
    holds = {name: set(words) for name, words in sections.items()}
    for alias, classes in annotated(tree):
        for name in classes & holds.keys():
            holds[name].add(alias)
    for new, old in [*assigned(tree)] * 2:  # twice: a name of a name
        for aliases in holds.values():
            if new is not None and old in aliases:
                aliases.add(new)
    found = list(reads(tree))
    return {(name, key) for name, aliases in holds.items() for alias, key in found if alias in aliases}


def sections():
    """Section classes, each with the words that it goes by; a word that means several is left to the uppermost."""
    depths = {}
    for key in all_keys():
        parts = [part for part in key.path[:-1] if part != "N"]
        depths.setdefault(parts[-1] if parts else "config", {}).setdefault(key.section.__name__, len(parts))
    named = {key.section.__name__: set() for key in all_keys()}
    for word, of in depths.items():
        for name in (name for name, depth in of.items() if depth == min(of.values())):
            named[name].add(word)
    return named


def with_fields(named):
    """Add the fields of the package's classes that hold a section to the words that it goes by."""
    for text in SOURCES:
        for field, classes in fields(ast.parse(text)):
            for name in classes & named.keys():
                named[name].add(field)
    return named


SECTIONS = with_fields(sections())
READ = set().union(*(keys_read(text, SECTIONS) for text in SOURCES))


@pytest.mark.parametrize("key", all_keys(), ids=lambda key: f"{key.section.__name__}.{key.name}")
def test_each_key_is_read_outside_the_configuration(key):
    if key.dotted in AHEAD:
        pytest.skip("its reader is being written")
    if key.dotted in CHOOSES or key.name in CHOOSES or key.section.__name__ == "Config":
        return
    assert (key.section.__name__, key.name) in READ, f"{key.dotted} is taken and then ignored"


@pytest.mark.parametrize("name", sorted(name for name in CHOOSES if "." in name))
def test_no_exception_is_kept_for_a_key_that_is_gone(name):
    assert name in {key.dotted for key in all_keys()}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("config.train.seed", True),
        ("def f(a: Train): return a.seed", True),
        ("t = config.train\nt.seed", True),
        ("a, t = config.loss, config.train\nt.seed", True),
        ("def f(section: Train): return getattr(section, 'seed')", True),
        ("config.loss.seed", False),
        ("seed = 1\nprint(other.seed)", False),
        ("train.seed = 1", False),
    ],
)
def test_a_key_counts_as_read_only_where_its_section_is_at_hand(source, found):
    assert (("Train", "seed") in keys_read(source, {"Train": {"train"}, "Loss": {"loss"}})) is found
