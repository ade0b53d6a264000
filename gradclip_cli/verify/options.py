"""What the battery is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from gradclip_cli.verify.clip import Clip, torch_clip


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `gradclip verify` that the battery knows.

    Attributes:
        device: As `--device` takes it.
        dtypes: Names; all where empty.
        max_norm: The bound, finite and above 0.
        elements: Of the largest tensor.
        world_size: How many ranks; None leaves it to `torchrun`, or to 1.
        timeout_s: How long ranks may take over one check.
        wanted: Ids, names or rules of checks; all where empty.
        clip: The function under test; it must be one that other processes can import.
    """

    device: str = "auto"
    dtypes: tuple[str, ...] = ()
    max_norm: float = 1.0
    elements: int = 10_000_000
    world_size: int | None = None
    timeout_s: float = 60.0
    wanted: tuple[str, ...] = ()
    clip: Clip = torch_clip
