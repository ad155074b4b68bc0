"""Adapters from outside: a class in a Python file, a module, or an installed entry point.

A plug-in may raise anything: here that becomes an error that names the plug-in and the medium, so that it is treated
as a medium that cannot be read. Knows nothing of what a plug-in reads.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mmgrpo.config.data import Data, MediaAdapter
from mmgrpo.errors import ConfigError, MediaError, MmgrpoError, explain
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.types import Decoded, Media, MediaKind

ENTRY_POINTS = "mmgrpo.adapters"
"""Group of entry points by which an installed package offers adapters."""
_KINDS = ("image", "audio", "video")


class Guarded:
    """A plug-in behind the contract: what it raises and what it returns are checked."""

    def __init__(self, adapter: Any, *, name: str) -> None:
        """Check the plug-in ``name``.

        Raises:
            ConfigError: It has no kind, no ``reads`` or no ``decode``.
        """
        missing = [part for part in ("reads", "decode") if not callable(getattr(adapter, part, None))]
        if getattr(adapter, "kind", None) not in _KINDS or missing:
            raise ConfigError(
                explain(
                    f"{name} is not a media adapter",
                    where="data.adapters",
                    expected=f"an attribute kind ({', '.join(_KINDS)}) and the methods reads(media), decode(media)",
                    got=f"kind {getattr(adapter, 'kind', None)!r}" + (f", without {missing[0]}" if missing else ""),
                )
            )
        self._adapter, self._name = adapter, name
        self.kind: MediaKind = adapter.kind

    @property
    def source(self) -> bytes:
        """The file that the plug-in is written in: one that is edited makes other media. Empty where there is none."""
        target = self._adapter if isinstance(self._adapter, type) else type(self._adapter)
        try:
            return Path(inspect.getsourcefile(target) or "").read_bytes()
        except (OSError, TypeError):
            return b""

    def reads(self, media: Media) -> bool:
        """Ask the plug-in whether the medium is for it."""
        return bool(self._call(self._adapter.reads, media))

    def decode(self, media: Media) -> Decoded:
        """Let the plug-in read the medium.

        Raises:
            MediaError: It failed, or made something else than it promised.
        """
        decoded = self._call(self._adapter.decode, media)
        if isinstance(decoded, Decoded) and decoded.kind == media.kind:
            return decoded
        kind = f" of kind {decoded.kind}" if isinstance(decoded, Decoded) else ""
        raise MediaError(
            explain(
                f"The adapter {self._name} did not make what it promised",
                where=media.name,
                expected=f"mmgrpo.types.Decoded of kind {media.kind}",
                got=f"{type(decoded).__name__}{kind}",
            )
        )

    def verify(self, media: Media) -> None:
        """Let the plug-in check the medium; one without a way of its own decodes it.

        Raises:
            MediaError: It failed.
        """
        check = getattr(self._adapter, "verify", None)
        if check is None:
            self.decode(media)
        else:
            self._call(check, media)

    def _call(self, call: Callable[[Media], Any], media: Media) -> Any:
        try:
            return call(media)
        except MmgrpoError:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise MediaError(
                explain(
                    f"The adapter {self._name} failed",
                    where=media.name,
                    got=f"{type(error).__name__}: {error}",
                    fix="Correct the adapter, or replace the file.",
                )
            ) from error


def load_adapters(wanted: Sequence[MediaAdapter], *, base: Path) -> list[Guarded]:
    """Load the plug-ins of ``data.adapters``.

    Args:
        wanted: As written in the YAML.
        base: Folder of the YAML; files are looked for there, then in the working folder.

    Returns:
        One adapter each, in the same order.

    Raises:
        ConfigError: There is no such file or name, it cannot be imported or built, or it is no adapter.
    """
    return [Guarded(_built(one, base), name=one.fn) for one in wanted]


def open_adapters(data: Data, *, base: Path, processor: Any = None) -> Adapters:
    """Put the adapters of a run together: plug-ins first, then those of pictures, sounds and clips.

    Args:
        data: The YAML's ``data`` section.
        base: Folder of the YAML.
        processor: The loaded processor, for its rates and sizes; None where only verifying is wanted.

    Returns:
        All adapters.

    Raises:
        ConfigError: A plug-in cannot be loaded.
    """
    return Adapters([*load_adapters(data.adapters, base=base), *built_in(data, processor=processor)])


def _built(wanted: MediaAdapter, base: Path) -> Any:
    where, _, name = wanted.fn.rpartition(":")
    try:
        target = _find(where, name or wanted.fn, base)
        return target(**wanted.args) if isinstance(target, type) or wanted.args else target
    except MmgrpoError:
        raise
    except Exception as error:  # a plug-in may raise anything while it is imported and built
        raise ConfigError(
            explain(
                f"The adapter {wanted.fn} cannot be loaded",
                where="data.adapters",
                got=f"{type(error).__name__}: {error}",
            )
        ) from error


def _find(where: str, name: str, base: Path) -> Any:
    if not where:
        points = importlib.metadata.entry_points(group=ENTRY_POINTS)
        if name in points.names:
            return points[name].load()
        raise _missing(name, f"an entry point of {ENTRY_POINTS} ({', '.join(sorted(points.names)) or 'none'})")
    module = _imported(where, base) if where.endswith(".py") else importlib.import_module(where)
    if not hasattr(module, name):
        raise _missing(f"{where}:{name}", f"a class of {where}")
    return getattr(module, name)


def _imported(path: str, base: Path) -> ModuleType:
    places = [base / path, Path.cwd() / path]
    file = next((place.resolve() for place in places if place.is_file()), None)
    if file is None:
        raise _missing(path, "one of " + "; ".join(dict.fromkeys(str(place.absolute()) for place in places)))
    name = f"mmgrpo_adapter_{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    spec.loader.exec_module(module)
    return module


def _missing(got: str, expected: str) -> ConfigError:
    return ConfigError(
        explain(
            "There is no such adapter",
            where="data.adapters",
            expected=f"{expected}; path/to/file.py:Class, module:Class or an entry point",
            got=got,
        )
    )
