"""The kinds of console log that are known; the first whose lines look like a line has it."""

from __future__ import annotations

from gradclip_cli.readers.text.format import Format
from gradclip_cli.readers.text.formats import (
    fairseq,
    gpt,
    huggingface,
    jax,
    megatron,
    mosaic,
    pytorch,
    reinforcement,
    robots,
    speech,
    vision,
)

FORMATS: tuple[Format, ...] = (
    *megatron.FORMATS,
    *huggingface.FORMATS,
    *fairseq.FORMATS,
    *gpt.FORMATS,
    *pytorch.FORMATS,
    *mosaic.FORMATS,
    *jax.FORMATS,
    *vision.FORMATS,
    *reinforcement.FORMATS,
    *robots.FORMATS,
    *speech.FORMATS,
)
