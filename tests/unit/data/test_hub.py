"""A hub that cannot be reached is told at once, and caches are used meanwhile."""

import socket
import time

import pytest
from huggingface_hub import constants

from mmgrpo.config.model import Model
from mmgrpo.data.network import hub_or_cache, unreachable
from mmgrpo.data.tables import loaded_rows, streamed_rows
from mmgrpo.errors import ConfigError, DatasetError
from mmgrpo.policy.model.processors import load_processor


@pytest.fixture
def no_hub(monkeypatch):
    """Point the hub's libraries at a port of this machine where nothing listens."""
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def test_a_hub_that_does_not_answer_is_named_with_the_reason(no_hub, monkeypatch):
    assert "127.0.0.1: Connection refused" in unreachable()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert unreachable() == ""  # what is behind a proxy is not known


def test_a_hub_that_answers_is_left_alone(no_hub, monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        with hub_or_cache("owner/name") as reason:
            assert reason == ""
            assert not constants.is_offline_mode()


def test_libraries_use_their_caches_only_while_something_is_loaded(no_hub):
    from datasets import config

    before = config.HF_HUB_OFFLINE
    with pytest.raises(KeyError), hub_or_cache("owner/name") as reason:
        assert reason
        assert constants.is_offline_mode() and config.HF_HUB_OFFLINE
        raise KeyError
    assert not constants.is_offline_mode()
    assert before == config.HF_HUB_OFFLINE


def test_a_local_path_asks_nobody(no_hub, tmp_path):
    with hub_or_cache(tmp_path) as reason:
        assert reason == ""


def test_models_and_rows_that_need_the_hub_are_told_within_seconds(no_hub):
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"hub cannot be reached[^$]*Connection refused[^$]*tiny:qwen2_5_vl"):
        load_processor(Model(name="some-owner/some-model"))
    with pytest.raises(DatasetError, match=r"some-owner/some-rows[^$]*hub cannot be reached"):
        loaded_rows("some-owner/some-rows", split="train")
    with pytest.raises(DatasetError, match=r"some-owner/some-rows[^$]*hub cannot be reached"):
        streamed_rows("some-owner/some-rows", split="train", config=None, revision=None, limit=3)
    assert time.monotonic() - start < 20  # retries of the libraries alone would be 30 seconds for each
