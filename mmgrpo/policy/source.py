"""Where a policy comes from: is it there, and what to say when it cannot be loaded.

Knows paths and errors, not models.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

from mmgrpo.config.model import Model
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


class said_plainly:
    """Turn transformers' loading errors into one sentence with the folder and the way out."""

    def __init__(self, settings: Model) -> None:
        self.settings = settings

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, _KNOWN) or isinstance(error, MmgrpoError):
            return
        name = self.settings.name
        looks_local = Path(name).exists()
        raise ConfigError(
            explain(
                "The checkpoint cannot be loaded",
                where=f"model.name: {name}",
                expected="a folder with config.json, weights and processor files" if looks_local else "a hub id",
                got=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
                fix=f"Check the path, or rehearse without a checkpoint: model.name={REHEARSAL}",
            )
        ) from error
