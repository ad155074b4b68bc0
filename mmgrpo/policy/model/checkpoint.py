"""Where a policy comes from and how its folder is laid out: is it there, what it says of itself, what went wrong.

Full weights are an ordinary transformers folder. An adapter has beside peft's files the ``model`` section that made
it, since a tiny base is built from sizes and a seed and has no path. Knows paths and errors, not models.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

from mmgrpo.config.model import Lora, Model
from mmgrpo.config.paths import nearest_path
from mmgrpo.data.network import hub_or_cache
from mmgrpo.errors import CheckpointError, ConfigError, MmgrpoError, explain

REHEARSAL = "tiny:qwen2_5_vl"
"""What to try where there is no checkpoint."""
_LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError)
"""What transformers and safetensors raise over a checkpoint that is absent, broken or of another shape."""
SETTINGS = "mmgrpo_model.json"
"""Name of the file with the ``model`` section."""


def require_checkpoint(settings: Model) -> None:
    """Tell a folder that is not there, or holds no model, from a hub id, before anything asks the network."""
    path = Path(settings.name)
    looks_local = path.exists() or path.is_absolute() or settings.name.startswith((".", "~"))
    if not looks_local or (path / "config.json").is_file():
        return
    got, near = "no such folder", "" if path.exists() else nearest_path(path.absolute())
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
            else f"Did you mean {near}?"
            if near
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
def friendly_errors(settings: Model) -> Generator[None]:
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
    except _LOADING_ERRORS as error:
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


def write_settings(folder: Path, settings: Model) -> None:
    """Write the ``model`` section beside an adapter."""
    text = json.dumps(settings.model_dump(mode="json"), indent=1)
    (folder / SETTINGS).write_text(text, encoding="utf-8")


def settings_of(folder: Path) -> Model:
    """Tell the ``model`` section that loads this folder: full weights by path, an adapter with its base.

    Args:
        folder: What ``Policy.save`` wrote, or a transformers or peft folder from elsewhere.

    Raises:
        CheckpointError: It holds neither a model nor an adapter, or the adapter does not name its base.
    """
    if (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        return Model(name=str(folder))
    if not (folder / "adapter_config.json").is_file():
        raise CheckpointError(explain("No policy in this folder", where=str(folder), expected="config.json"))
    if (folder / SETTINGS).is_file():
        settings = Model(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))
        # its own files know rank, scale and layers
        return settings.model_copy(update={"lora": Lora(adapter=str(folder))})
    base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not base:
        raise CheckpointError(
            explain("The adapter does not name its base model", where=str(folder / "adapter_config.json"))
        )
    return Model(name=base, tune="lora", lora=Lora(adapter=str(folder)))


def find_policy_folder(folder: Path) -> Path:
    """Find the policy in a run folder (its newest checkpoint), in a checkpoint, or right here.

    Raises:
        CheckpointError: There is none.
    """
    steps = [p for p in (folder / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    newest = sorted(steps, key=lambda p: int(p.name.split("-")[1]), reverse=True)
    for place in (folder, folder / "policy", *(step / "policy" for step in newest)):
        if (place / "config.json").is_file() or (place / "adapter_config.json").is_file():
            return place
    raise CheckpointError(
        explain(
            "No policy in this folder",
            where=str(folder),
            expected="a run folder with checkpoints, a checkpoint, or a folder with config.json",
        )
    )
