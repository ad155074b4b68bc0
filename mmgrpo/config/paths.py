"""Where files that a configuration names are looked for.

The order is: beside the file that names it, the working folder, then the copies that come with the package. This
file does not know what is in them.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from mmgrpo.errors import ConfigError, explain

BUNDLED = ("rewards", "datasets_configs", "examples")
"""Folders that come with the package."""

_PACKAGE = Path(__file__).resolve().parent.parent


def bundled_folder() -> Path | None:
    """Give the folder that holds ``rewards/``, ``datasets_configs/`` and ``examples/``.

    Returns:
        ``mmgrpo/bundled`` of an installed wheel, the repository of an editable install, or None.
    """
    installed = _PACKAGE / "bundled"
    if installed.is_dir():
        return installed
    repository = _PACKAGE.parent
    return repository if (repository / "pyproject.toml").is_file() else None


def shipped_rewards() -> Path:
    """The folder of the rewards that come with mmgrpo: in the wheel, or the repository's in an editable install."""
    return (bundled_folder() or Path.cwd()) / "rewards"


def find_file(name: str | Path, base: str | Path | None = None, *, what: str = "file") -> Path:
    """Find a file that a configuration or a user names.

    Args:
        name: As written; ``~`` is the home folder.
        base: Folder of the file that names it; None: no such file.
        what: How the message calls it, for example "reward file".

    Returns:
        The absolute path of the first that exists, a file or a folder: relative to ``base``, to the working
        folder, then in the copies that come with the package (``rewards/``, ``datasets_configs/``, ``examples/``).

    Raises:
        ConfigError: There is none; the message lists where it was looked for, and a name that is close.
    """
    tried = _places(Path(name).expanduser(), base)
    for place in tried:
        if place.exists():
            return place.resolve()
    listed = "\n    ".join(dict.fromkeys(str(place) for place in tried))
    close = _close(tried)
    fix = f"Did you mean {close}?" if close else "Check the spelling, or give an absolute path."
    raise ConfigError(explain(f"No such {what}: {name}", expected=f"one of\n    {listed}", fix=fix))


def _places(path: Path, base: str | Path | None) -> list[Path]:
    if path.is_absolute():
        return [path]
    folders = [Path.cwd() if base is None else Path(base).absolute(), Path.cwd()]
    places = [folder / path for folder in folders]
    bundled = bundled_folder()
    if bundled is not None and path.parts[:1] and path.parts[0] in BUNDLED:
        places.append(bundled / path)
    return places


def _close(tried: list[Path]) -> str:
    for place in tried:
        if place.parent.is_dir():
            names = [other.name for other in place.parent.iterdir()]
            close = difflib.get_close_matches(place.name, names, n=1, cutoff=0.7)
            if close:
                return str(place.parent / close[0])
    return ""
