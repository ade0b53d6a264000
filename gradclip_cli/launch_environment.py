"""What a launcher such as torchrun tells its processes by environment variables."""

from __future__ import annotations

import os

from gradclip_cli.errors import UsageError

# Each with the least it may be.
_VARIABLES = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "TORCHELASTIC_RESTART_COUNT": 0}


def check_launch_environment() -> None:
    """Whether those that are set are the numbers they should be; whoever reads them can rely on it then.

    Raises:
        UsageError: Where one is something else.
    """
    for name, least in _VARIABLES.items():
        value = os.environ.get(name)
        if value is not None and not (value.isascii() and value.isdigit() and least <= int(value[:10])):
            raise UsageError(
                f"environment variable {name} is {value!r}; expected a whole number of at least {least}",
                hint=f"unset {name}, or let torchrun set it",
            )


def launched_rank() -> tuple[int, int]:
    """This process's rank and how many there are, by what a launcher set; (0, 1) without one. A RANK alone is left over from something."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    return (int(os.environ["RANK"]), world_size) if world_size > 1 and "RANK" in os.environ else (0, 1)


def launched_local_rank() -> int:
    """This process's rank among those of its machine; 0 without a launcher."""
    rank, world_size = launched_rank()
    return int(os.environ.get("LOCAL_RANK", rank)) if world_size > 1 else 0
