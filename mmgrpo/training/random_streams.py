"""The random streams of Python, numpy and torch, as plain values that a checkpoint can hold.

Completions draw from streams of their own (seed, step, draw_index, index) and are no concern of this file.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (every device)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture() -> dict[str, Any]:
    """Read all streams, as tensors, numbers and tuples only, so that they load without running code."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(streams: Mapping[str, Any]) -> None:
    """Set all streams to what :func:`capture` read.

    Streams of CUDA devices are set only where as many devices are there as were captured: on another machine they
    cannot be continued.
    """
    random.setstate(streams["python"])
    kind, keys, position, has_gauss, gauss = streams["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(streams["torch"])
    if torch.cuda.is_available() and len(streams["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(streams["cuda"])
