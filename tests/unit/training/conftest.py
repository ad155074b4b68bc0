"""A policy of a few hundred weights, and groups to feed it. Shared by the tests of the training room."""

from __future__ import annotations

import pytest
import torch
from small_policy import FakePolicy, scored_group


@pytest.fixture
def make_policy():
    return FakePolicy


@pytest.fixture
def policy():
    return FakePolicy()


@pytest.fixture
def scored():
    return scored_group


@pytest.fixture
def centred():
    """Advantages without a standard deviation: reward minus the group's mean, 0 where NaN."""
    return lambda groups: [torch.nan_to_num(g.totals - g.totals.nanmean()) for g in groups]
