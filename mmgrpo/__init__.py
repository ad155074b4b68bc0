"""mmgrpo: GRPO for multimodal models.

    >>> import mmgrpo                                                   # doctest: +SKIP
    >>> run = mmgrpo.train("examples/quickstart.yaml", train={"num_steps": 20})   # doctest: +SKIP

Importing the package loads no torch: the names below are fetched when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CheckpointError": "mmgrpo.errors",
    "Completion": "mmgrpo.types",
    "Config": "mmgrpo.config.schema",
    "ConfigError": "mmgrpo.errors",
    "DataError": "mmgrpo.errors",
    "DatasetError": "mmgrpo.errors",
    "Decoded": "mmgrpo.types",
    "EngineUnavailable": "mmgrpo.errors",
    "FamilySpec": "mmgrpo.policy.families.spec",
    "Group": "mmgrpo.types",
    "Media": "mmgrpo.types",
    "MediaError": "mmgrpo.errors",
    "MmgrpoError": "mmgrpo.errors",
    "ProcessorError": "mmgrpo.errors",
    "Prompt": "mmgrpo.types",
    "RewardError": "mmgrpo.errors",
    "RolloutError": "mmgrpo.errors",
    "Run": "mmgrpo.api",
    "Sample": "mmgrpo.types",
    "Sampling": "mmgrpo.types",
    "ScoredGroup": "mmgrpo.types",
    "ScriptedEngine": "mmgrpo.rollout.scripted",
    "TrainingError": "mmgrpo.errors",
    "WeightSyncError": "mmgrpo.errors",
    "after_reasoning": "mmgrpo.reward.answers",
    "answer_mode": "mmgrpo.reward.answers",
    "answer_or_text": "mmgrpo.reward.answers",
    "call_reward": "mmgrpo.reward.calling",
    "evaluate": "mmgrpo.api",
    "is_well_formed": "mmgrpo.reward.answers",
    "last_answer": "mmgrpo.reward.answers",
    "last_boxed": "mmgrpo.reward.answers",
    "load": "mmgrpo.api",
    "load_config": "mmgrpo.config.load",
    "load_plugin": "mmgrpo.plugins",
    "load_reward": "mmgrpo.reward.loading",
    "marked_answers": "mmgrpo.reward.answers",
    "normalise": "mmgrpo.reward.answers",
    "plain_answer": "mmgrpo.reward.answers",
    "plain_words": "mmgrpo.reward.answers",
    "read_answer": "mmgrpo.reward.answers",
    "read_ground_truth": "mmgrpo.reward.answers",
    "register_family": "mmgrpo.policy.families.registry",
    "reward_facts": "mmgrpo.reward.facts",
    "same_answer": "mmgrpo.reward.answers",
    "spoken_text": "mmgrpo.reward.answers",
    "strip_end": "mmgrpo.reward.answers",
    "to_number": "mmgrpo.reward.answers",
    "train": "mmgrpo.api",
}

__all__ = sorted([*_HOMES, "__version__"])  # pyright: ignore


def __getattr__(name: str) -> Any:
    """Fetch a public name from the file that defines it, the first time it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mmgrpo' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
