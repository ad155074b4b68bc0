"""The YAML's clip limits, written into the processor, where saving the processor keeps them.

Frames are sized when they are decoded; the processor must then neither enlarge nor shrink them, and an engine that
loads the saved processor must come to the same sizes. Knows the size settings that processors of clips share.
"""

from __future__ import annotations

from typing import Any

from mmgrpo.config.data import VideoLimits

_PROBE_SIDE = 8192


def set_clip_limits(processor: Any, limits: VideoLimits) -> None:
    """Lay the YAML's limits over those of the checkpoint.

    Args:
        processor: A loaded processor; one without clips, or whose clips have a fixed size, is left alone.
        limits: The YAML's.
    """
    video = getattr(processor, "video_processor", None)
    size = getattr(video, "size", None)
    edges = [value for name, value in dict(size or {}).items() if name in ("shortest_edge", "longest_edge")]
    if video is None or size is None or len(edges) != 2 or not all(isinstance(edge, int) for edge in edges):
        return
    lowest, highest = sorted(edges)
    if counts_all_frames(video):
        highest = limits.max_total_pixels or highest
    elif limits.max_pixels is not None:
        highest = min(highest, limits.max_pixels)
    if limits.max_total_pixels is not None:
        lowest = min(lowest, limits.max_total_pixels // limits.max_frames)
    video.size = type(size)(shortest_edge=min(limits.min_pixels or lowest, highest), longest_edge=highest)


def counts_all_frames(video_processor: Any) -> bool:
    """Tell whether a processor's limits are for all frames of a clip together, or for each.

    Found by asking for the patches of a short and of a long clip of huge frames: where they share a limit, ten times
    the frames do not give ten times the patches.

    Args:
        video_processor: What has the limits.
    """
    count = getattr(video_processor, "get_num_of_video_patches", None)
    if count is None:
        return False
    group = int(getattr(video_processor, "temporal_patch_size", None) or 1)
    try:
        short, long = (count(group * n, _PROBE_SIDE, _PROBE_SIDE, {}) for n in (2, 20))
    except (TypeError, ValueError, KeyError):
        return False
    return bool(long < 5 * short)
