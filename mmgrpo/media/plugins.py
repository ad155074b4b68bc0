"""Adapters from outside: a class in a Python file, a module, or an installed entry point.

A plug-in may raise anything: here that becomes an error that names the plug-in and the medium, so that it is treated
as a medium that cannot be read. Knows nothing of what a plug-in reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.config.data import Data, MediaAdapter
from mmgrpo.errors import ConfigError, MediaError, explain
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.plugins import build_object, load_object, plugin_errors
from mmgrpo.types import Decoded, Media, MediaKind

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
        fix = "Correct the adapter, or replace the file."
        with plugin_errors(f"The adapter {self._name} failed", where=media.name, fix=fix, error=MediaError):
            return call(media)


def load_adapters(wanted: Sequence[MediaAdapter], *, base: Path) -> list[Guarded]:
    """Load the plug-ins of ``data.adapters``.

    Args:
        wanted: As written in the YAML.
        base: Folder of the YAML, where relative paths start.

    Returns:
        One adapter each, in the same order.

    Raises:
        ConfigError: There is no such file or name, it cannot be imported or built, or it is no adapter.
    """
    return [Guarded(_built(one, base, f"data.adapters.{place}"), name=one.fn) for place, one in enumerate(wanted)]


def _built(wanted: MediaAdapter, base: Path, where: str) -> Any:
    target = load_object(wanted.fn, kind="adapters", folder=base, where=where)
    return build_object(target, wanted.args, spec=wanted.fn, where=where)


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
