"""Stopping on purpose: signals, a time limit, and threads that cannot catch signals."""

import os
import signal
import threading

import pytest

from mmgrpo.running.stop import STOPPING, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_stop_and_says_so_once(number):
    said = []
    with StopRequest(on_signal=said.append) as stop:
        assert stop.reason is None
        os.kill(os.getpid(), number)
        assert stop.reason == number.name
    assert said == [STOPPING]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_asking_twice_stops_at_once(second):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)
        assert stop.reason == "SIGINT"


def test_the_handlers_of_before_are_put_back_also_after_an_error():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(ZeroDivisionError), StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_handler_that_python_cannot_put_back_becomes_the_default():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with StopRequest() as stop:
            stop._before[signal.SIGTERM] = None  # what signal.signal gives for a handler from C
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_line_that_is_being_printed_does_not_break_the_handler():
    def interrupted(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    with StopRequest(on_signal=interrupted) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reason == "SIGINT"


def test_the_time_limit_counts_from_entering():
    now = [100.0]
    stop = StopRequest(max_seconds=5, clock=lambda: now[0])
    now[0] = 1000.0
    with stop:
        now[0] = 1004.9
        assert stop.reason is None
        now[0] = 1005.0
        assert stop.reason == "the time limit of 5 seconds"


def test_in_another_thread_signals_are_left_alone_and_the_time_limit_works():
    before = signal.getsignal(signal.SIGINT)
    found = []

    def work():
        now = [0.0]
        with StopRequest(max_seconds=1, clock=lambda: now[0]) as stop:
            now[0] = 2.0
            found.append((stop.reason, signal.getsignal(signal.SIGINT) == before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [("the time limit of 1 second", True)]
