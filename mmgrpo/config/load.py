"""From a YAML file and overrides to one frozen configuration.

The layers, lowest first: the file that ``data.config`` names, ``base``, the YAML, the overrides. They are merged and
then checked once, and every fault is reported with its place. No value is interpreted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmgrpo.config.layers import overlay, read_mapping, read_texts
from mmgrpo.config.paths import find_file
from mmgrpo.config.problems import config_error
from mmgrpo.config.schema import Config
from mmgrpo.config.yaml_text import Document, KeyPath, read_document
from mmgrpo.errors import ConfigError, explain, short_repr

_EMPTY = Document(values={}, marks={})

Overrides = Sequence[str] | Mapping[str, Any]
"""``["loss.beta=0.01"]``, ``{"loss": {"beta": 0.01}}`` or ``{"loss.beta": 0.01}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration and where it came from."""

    config: Config
    """The resolved tree."""
    path: Path | None
    """The YAML; None: it was built in Python."""
    folder: Path
    """Where relative paths in it start: the YAML's folder, or the working folder."""
    name: str
    """The YAML's name without its ending; ``run`` where there is no YAML."""


AnyConfig = str | Path | Config | Mapping[str, Any] | None
"""A YAML, a configuration, its sections as a mapping, or None: there are only overrides."""


def load_config(path: AnyConfig = None, overrides: Overrides = (), *, base: Mapping[str, Any] | None = None) -> Config:
    """Read a YAML, apply overrides, and check the whole.

    Args:
        path: The YAML (looked for in the working folder, then among the bundled examples), an existing
            configuration to vary, its sections as a mapping, or None to build one from ``base`` and ``overrides``
            alone.
        overrides: ``["loss.beta=0.01"]`` as on the command line, or a mapping, nested or with dotted keys.
        base: Values underneath the YAML.

    Returns:
        The frozen configuration. What ``data.config`` names is merged in, and ``data.config`` is then None.

    Raises:
        ConfigError: A file is missing or not YAML, or keys or values are wrong; all faults are reported together.

    Example:
        >>> load_config(None, {"model.name": "tiny:qwen2_5_vl", "loss": {"beta": 0.01}}).loss.beta
        0.01
    """
    return resolve_config(path, overrides, base=base).config


def resolve_config(
    path: AnyConfig = None,
    overrides: Overrides = (),
    *,
    base: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
) -> LoadedConfig:
    """Do what :func:`load_config` does, and keep where the configuration came from.

    Args:
        path: A YAML, an existing configuration to vary, its sections as a mapping, or None.
        overrides: As texts or as a mapping; they win.
        base: Values underneath the YAML.
        folder: Where relative paths start; default: the YAML's folder. A run folder's copy of a configuration
            is loaded with the folder of the original.

    Returns:
        The configuration, its path, and the folder that its relative paths start from.

    Raises:
        ConfigError: A file is missing or not YAML, or keys or values are wrong.
    """
    written, file = _written(path)
    start = Path(folder) if folder is not None else file.parent if file is not None else Path.cwd()
    layers = [read_mapping(base or {}), written, read_overrides(overrides)]
    merged = _stack(layers)
    named = _dataset_file(merged)
    if named is not None:
        dataset = _dataset_layer(find_file(named, start, what="data.config file"))
        merged = _without(_stack([dataset, *layers]), ("data", "config"))
    try:
        config = Config.model_validate(merged.values)
    except ValidationError as error:
        raise config_error(error, merged) from None
    return LoadedConfig(config=config, path=file, folder=start.absolute(), name=file.stem if file else "run")


def _written(path: AnyConfig) -> tuple[Document, Path | None]:
    if path is None:
        return _EMPTY, None
    if isinstance(path, Config):
        return read_mapping(path.model_dump(exclude_unset=True)), None
    if isinstance(path, Mapping):
        return read_mapping(path), None
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        expected = "the path of a YAML, a mmgrpo.Config, or a mapping of sections"
        raise ConfigError(
            explain("Not a configuration", expected=expected, got=f"{type(path).__name__}: {short_repr(path)}")
        )
    file = find_file(path, what="configuration")
    if file.is_dir():
        fix = "Give the YAML file; a run folder's own is config.yaml."
        raise ConfigError(explain("The configuration is a folder", where=str(path), fix=fix))
    return read_document(file, name=str(path)), file


def read_overrides(overrides: Overrides) -> Document:
    """Read overrides of any form as one layer.

    Raises:
        ConfigError: They are neither texts nor a mapping, or one of them is malformed.
    """
    if isinstance(overrides, Mapping):
        return read_mapping(overrides)
    texts = [overrides] if isinstance(overrides, str) else overrides
    # what Python hands over may be anything, whatever the annotation says
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):  # pyright: ignore
        expected = '["loss.beta=0.01"] or {"loss": {"beta": 0.01}}'
        raise ConfigError(explain("These are no overrides", expected=expected, got=short_repr(overrides)))
    return read_texts(texts)


def _stack(layers: Sequence[Document]) -> Document:
    merged = _EMPTY
    for layer in layers:
        try:
            merged = overlay(merged, layer)
        except IndexError as error:
            mark = next((str(mark) for mark in layer.marks.values()), "")
            raise ConfigError(explain(f"No such list item: {error}", where=mark)) from error
    return merged


def _dataset_file(document: Document) -> str | None:
    data = document.values.get("data")
    name = data.get("config") if isinstance(data, dict) else None
    return name if isinstance(name, str) else None


def _dataset_layer(file: Path) -> Document:
    """Read a file of ``datasets_configs/``: the keys of ``data:``, at the top level."""
    document = read_document(file)
    if "config" in document.values:
        where = str(document.marks[("config",)])
        raise ConfigError(explain("A data.config file cannot name another one", where=where))
    marks = {("data", *path): mark for path, mark in document.marks.items() if path}
    return Document(values={"data": document.values}, marks=marks)


def _without(document: Document, path: KeyPath) -> Document:
    values = {**document.values, "data": {**document.values["data"], path[-1]: None}}
    return Document(values=values, marks=document.marks)
