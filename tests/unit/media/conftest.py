"""Small films, made as they are needed."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from fractions import Fraction

import av
import numpy as np
import pytest

FORMATS = {"mp4": "libx264", "matroska": "libx264", "webm": "libvpx-vp9", "avi": "mpeg4", "mov": "libx265"}


@pytest.fixture(scope="session")
def make_clip() -> Callable[..., bytes]:
    """Make a clip file; without frames, each of them is grey and brighter than the one before."""

    def build(
        frames: Sequence[np.ndarray] | None = None,
        *,
        count: int = 20,
        size: tuple[int, int] = (48, 64),
        fps: int = 10,
        times: Sequence[float] | None = None,
        form: str = "mp4",
        sound: np.ndarray | None = None,
    ) -> bytes:
        if frames is None:
            frames = [np.full((*size, 3), 20 + 200 * i // max(1, count - 1), np.uint8) for i in range(count)]
        out = io.BytesIO()
        with av.open(out, "w", format=form) as file:
            stream = file.add_stream(FORMATS[form], rate=fps)
            stream.height, stream.width = frames[0].shape[:2]
            stream.pix_fmt = "yuv420p"
            stream.codec_context.time_base = Fraction(1, 1000)
            if form == "mov":
                stream.options = {"x265-params": "log-level=none"}
            track = file.add_stream("aac", rate=16000, layout="mono") if sound is not None else None
            for i, pixels in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.time_base = Fraction(1, 1000)
                frame.pts = round(1000 * (times[i] if times is not None else i / fps))
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
            if track is not None and sound is not None:
                for start in range(0, len(sound), 1024):
                    part = av.AudioFrame.from_ndarray(sound[None, start : start + 1024], format="fltp", layout="mono")
                    part.rate, part.pts, part.time_base = 16000, start, Fraction(1, 16000)
                    file.mux(track.encode(part))
                file.mux(track.encode(None))
        return out.getvalue()

    return build
