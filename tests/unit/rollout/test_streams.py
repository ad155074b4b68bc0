"""Counter-based random streams."""

import numpy as np
import pytest
from scipy import stats

from mmgrpo.rollout.sampling import stream_keys, uniforms


def test_uniforms_are_uniform_over_completions_and_over_tokens():
    keys = stream_keys(3, "train", 11, 4000)
    across = uniforms(keys, 5)
    along = np.concatenate([uniforms(keys[:4], t) for t in range(1000)])
    for sample in (across, along):
        assert sample.min() >= 0 and sample.max() < 1
        assert stats.kstest(sample, "uniform").pvalue > 1e-3


def test_neighbouring_tokens_completions_and_draws_are_uncorrelated():
    keys = stream_keys(0, "train", 0, 4000)
    other = np.array([stream_keys(0, "train", i, 1)[0] for i in range(4000)])
    pairs = [
        (uniforms(keys, 0), uniforms(keys, 1)),
        (uniforms(keys[:-1], 0), uniforms(keys[1:], 0)),
        (uniforms(other[:-1], 0), uniforms(other[1:], 0)),
        (uniforms(keys, 0), uniforms(stream_keys(1, "train", 0, 4000), 0)),
    ]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.06


@pytest.mark.parametrize("change", [{"seed": 1}, {"stream": "eval"}, {"draw_index": 8}])
def test_seed_stream_and_draw_index_each_give_other_streams(change):
    base = {"seed": 0, "stream": "train", "draw_index": 7, "count": 64}
    assert not set(stream_keys(**base).tolist()) & set(stream_keys(**(base | change)).tolist())


def test_a_completion_has_the_same_stream_in_a_group_of_any_size():
    assert np.array_equal(stream_keys(0, "train", 7, 3), stream_keys(0, "train", 7, 9)[:3])
