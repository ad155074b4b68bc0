"""Bars of other libraries."""

import huggingface_hub.utils as hub
import pytest
from transformers.utils import logging

from mmgrpo.api.quiet import quiet_bars


@pytest.fixture(autouse=True)
def as_before():
    shown, downloads = logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    yield
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    (hub.enable_progress_bars if downloads else hub.disable_progress_bars)()


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("downloads", [True, False])
def test_inside_there_are_no_bars_but_those_of_downloads_and_behind_all_is_as_before(shown, downloads):
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    (hub.enable_progress_bars if downloads else hub.disable_progress_bars)()
    with pytest.raises(ZeroDivisionError), quiet_bars():
        assert not logging.is_progress_bar_enabled()
        assert hub.are_progress_bars_disabled() is not downloads
        raise ZeroDivisionError
    assert logging.is_progress_bar_enabled() is shown
    assert hub.are_progress_bars_disabled() is not downloads
