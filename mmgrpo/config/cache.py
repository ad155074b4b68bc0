"""``cache:`` media kept between uses."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.base import Int, Section


class Cache(Section):
    """Media kept between uses: each content is decoded and processed once, and encoded once a step."""

    media_bytes: Int = Field(default=0, ge=0)
    """Keep media in memory up to this many bytes; 0: none."""
    features_bytes: Int = Field(default=1_000_000_000, ge=0)
    """Keep what frozen encoders make of a step's prompts, on the policy's device, from the rollout to the update, up
    to this many bytes; 0: encode in each pass. Results are the same."""
    folder: str | None = None
    """Keep media in files of this folder, between runs too; nothing in it is ever deleted. Relative to the YAML."""
