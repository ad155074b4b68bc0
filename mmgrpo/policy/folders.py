"""What a saved policy's folder says of itself: enough to load it again without the YAML of its run.

Full weights are an ordinary transformers folder. An adapter has beside peft's files the ``model`` section that made
it, since a tiny base is built from sizes and a seed and has no path.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from mmgrpo.config.model import Lora, Model
from mmgrpo.errors import CheckpointError, explain

SETTINGS = "mmgrpo_model.json"
"""Name of the file with the ``model`` section."""


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
        lora = (settings.lora or Lora()).model_copy(update={"adapter": str(folder)})
        return settings.model_copy(update={"lora": lora})
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
