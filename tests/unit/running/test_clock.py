"""Seconds per phase."""

import pytest

from mmgrpo.running.clock import Clock


def test_seconds_add_up_per_phase_and_start_anew_when_read():
    clock = Clock(iter([0.0, 2.0, 10.0, 11.0, 20.0, 25.0, 30.0, 31.0]).__next__)
    for phase in ("data", "data", "reward"):
        with clock(phase):
            pass
    assert clock.read() == {"data": 3.0, "reward": 5.0}
    with clock("data"):
        pass
    assert clock.read() == {"data": 1.0}
    assert clock.read() == {}


def test_a_phase_that_raises_is_timed_and_raises():
    clock = Clock(iter([0.0, 4.0]).__next__)
    with pytest.raises(ZeroDivisionError), clock("reward"):
        1 // 0  # noqa: B018
    assert clock.read() == {"reward": 4.0}
