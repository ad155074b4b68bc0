"""Where files that a configuration names are looked for.

The order is: beside the file that names it, the working folder, then the copies that come with the package. This
file does not know what is in them.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from functools import cache
from pathlib import Path

from mmgrpo.errors import ConfigError, explain, shortened

BUNDLED = ("rewards", "datasets_configs", "examples")
"""Folders that come with the package."""

_DEFINED = re.compile(r"^(?:async def|def|class) ([A-Za-z]\w*)", re.MULTILINE)
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


@cache
def shipped_reward_names() -> dict[str, tuple[str, ...]]:
    """By file of ``rewards/`` (without its ending): the functions and classes in it; nothing is imported."""
    files = sorted(shipped_rewards().glob("*.py"))
    return {file.stem: tuple(_DEFINED.findall(file.read_text(encoding="utf-8"))) for file in files}


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
        if _exists(place):
            return place.resolve()
    listed = "\n    ".join(dict.fromkeys(shortened(str(place), 300) for place in tried))
    near = next(filter(None, map(nearest_path, tried)), "")
    fix = f"Did you mean {near}?" if near else "Check the spelling, or give an absolute path."
    raise ConfigError(
        explain(f"No such {what}: {shortened(str(name), 200)}", expected=f"one of\n    {listed}", fix=fix)
    )


def _places(path: Path, base: str | Path | None) -> list[Path]:
    if path.is_absolute():
        return [path]
    folders = [Path.cwd() if base is None else Path(base).absolute(), Path.cwd()]
    places = [folder / path for folder in folders]
    bundled = bundled_folder()
    if bundled is not None and path.parts[:1] and path.parts[0] in BUNDLED:
        places.append(bundled / path)
    return places


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except (OSError, ValueError):  # longer than a file system takes, or with a character that it does not
        return False


def nearest_path(path: Path) -> str:
    """Find the file or folder whose name is closest to one that does not exist.

    Args:
        path: What was looked for, absolute or from the working folder.

    Returns:
        The path; its folder may be the mistyped part. Empty: nothing is close.
    """
    with contextlib.suppress(OSError, ValueError):  # a folder that cannot be read, a name that cannot exist
        if path.parent.is_dir():
            names = [other.name for other in path.parent.iterdir() if not other.name.startswith(".")]
            return _joined(path.parent, difflib.get_close_matches(path.name[:255], names, n=1))
        above = path.parent.parent
        folders = [other.name for other in above.iterdir() if (other / path.name).exists()] if above.is_dir() else []
        close = difflib.get_close_matches(path.parent.name[:255], folders, n=1)
        return _joined(above, [f"{folder}/{path.name}" for folder in close])
    return ""


def _joined(folder: Path, names: list[str]) -> str:
    return str(folder / names[0]) if names else ""
