"""Where a policy comes from: is it there, and what to say when it cannot be loaded.

Knows paths and errors, not models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

from mmgrpo.config.model import Model
from mmgrpo.data.network import hub_or_cache
from mmgrpo.errors import ConfigError, MmgrpoError, explain

REHEARSAL = "tiny:qwen2_5_vl"
"""What to try where there is no checkpoint."""
_KNOWN = (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError)
"""What transformers and safetensors raise over a checkpoint that is absent, broken or of another shape."""


def require_checkpoint(settings: Model) -> None:
    """Tell a folder that is not there, or holds no model, from a hub id, before anything asks the network."""
    path = Path(settings.name)
    looks_local = path.exists() or path.is_absolute() or settings.name.startswith((".", "~"))
    if not looks_local or (path / "config.json").is_file():
        return
    got = "no such folder"
    if (path / "adapter_config.json").is_file():
        got = "an adapter, which has no weights of its own"
    elif path.exists():
        got = "no config.json in it"
    raise ConfigError(
        explain(
            "The checkpoint cannot be loaded",
            where=f"model.name: {settings.name}",
            expected=f"a folder with config.json, weights and processor files at {path.resolve()}",
            got=got,
            fix="Name the base model here and the adapter under model.lora.adapter."
            if got.startswith("an adapter")
            else f"Check the path, or rehearse without a checkpoint: model.name={REHEARSAL}",
        )
    )


def require_bitsandbytes() -> None:
    """Refuse a 4-bit base where the library for it is missing.

    Raises:
        ConfigError: It names the extra to install.
    """
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            explain(
                "A 4-bit base needs bitsandbytes",
                where="model.tune: qlora",
                fix="pip install 'mmgrpo[qlora]', or set model.tune: lora.",
            )
        )


@contextlib.contextmanager
def said_plainly(settings: Model) -> Generator[None]:
    """Turn transformers' loading errors into one sentence with the folder and the way out.

    Raises:
        ConfigError: In place of what transformers raised.
    """
    name = settings.name
    reason = ""
    try:
        with hub_or_cache(name) as reason:
            yield
    except MmgrpoError:
        raise
    except _KNOWN as error:
        here = Path(name).exists()
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        download = "Connect this machine, or download the model elsewhere and name its folder" if reason else ""
        raise ConfigError(
            explain(
                "The checkpoint cannot be loaded",
                where=f"model.name: {name}",
                expected="a folder with config.json, weights and processor files" if here else "",
                got=f"the hub cannot be reached ({reason}), and its cache has no whole copy" if reason else first,
                fix=f"{download or 'Check the path'}, or rehearse without a checkpoint: model.name={REHEARSAL}",
            )
        ) from error
