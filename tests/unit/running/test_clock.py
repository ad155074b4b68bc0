"""Seconds per phase."""

import pytest

from mmgrpo.running.clock import Stopwatch


def test_seconds_add_up_per_phase_and_start_anew_when_read():
    ticks = iter([0.0, 2.0, 10.0, 11.0, 20.0, 25.0, 30.0, 31.0])
    watch = Stopwatch(clock=ticks.__next__)
    take, score = watch.timed("data", lambda x: x + 1), watch.timed("reward", lambda: None)
    assert take(1) == 2
    take(x=1)
    score()
    assert watch.read() == {"data": 3.0, "reward": 5.0}
    take(1)
    assert watch.read() == {"data": 1.0}
    assert watch.read() == {}


def test_a_function_that_raises_is_timed_and_raises():
    watch = Stopwatch(clock=iter([0.0, 4.0]).__next__)
    with pytest.raises(ZeroDivisionError):
        watch.timed("reward", lambda: 1 // 0)()
    assert watch.read() == {"reward": 4.0}
