"""What `detect` finds in the series of a run: indices and numbers, no words."""

from __future__ import annotations

from dataclasses import dataclass

from gradclip_cli.model.run import Values


@dataclass(frozen=True, eq=False, slots=True)
class Baseline:
    """What was usual at each point of a series, and how high a point had to be to raise an alarm.

    Attributes:
        level: float64, shape (n,): usual value; NaN where there was too little history.
        bound: float64, shape (n,): the alarm bound; NaN likewise.
    """

    level: Values
    bound: Values


@dataclass(frozen=True, slots=True)
class Explosion:
    """A stretch of points of `grad_norm` far above the usual norm. Indices into the series, inclusive.

    Attributes:
        first, last, peak: Indices.
        level: The usual norm before it.
        ratio: Norm at the peak / level.
    """

    first: int
    last: int
    peak: int
    level: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Spike:
    """A stretch of points of `loss` above what was expected. Indices into the series, inclusive.

    Attributes:
        first, last, peak: Indices. `last` is where it came back, or the last point when it did not.
        level: The expected loss before it.
        height: Loss at the peak - level.
        recovered: True, False, or None where the log ends too soon to tell.
        excess: How far the loss stays above the expected level at the end, as a fraction of that
            level (0 when recovered).
        fatal: True where the run counts as diverged because of it.
        led_by: Index into `Detection.explosions` of the explosion that preceded it.
    """

    first: int
    last: int
    peak: int
    level: float
    height: float
    recovered: bool | None
    excess: float = 0.0
    fatal: bool = False
    led_by: int | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """A sustained rise of the norm's level. Indices into `grad_norm`, inclusive.

    Attributes:
        first, last: Where the rise began and where the level stopped rising (or the next event began).
        factor: Level at `last` / level at `first`.
    """

    first: int
    last: int
    factor: float


@dataclass(frozen=True, eq=False, slots=True)
class Detection:
    """What `detect` found. Indices refer to the series of the run that was given.

    Attributes:
        explosions, spikes, growths: In time order.
        recurring: Indices into `loss` of short rises that come round so regularly or so often, without
            explosions, that they were taken for the way of these data and not for spikes.
        collapses: First and last indices into `loss`, inclusive, of falls that no learning makes: within one row to
            exactly zero for good or for long, or from above zero to far below it.
        norm, loss: Baselines, for pictures; None where there is no such series.
        judged_norm, judged_loss: How many points had enough history to be judged.
        diverged: The run never came back, or ended non-finite.
    """

    explosions: tuple[Explosion, ...] = ()
    spikes: tuple[Spike, ...] = ()
    growths: tuple[Growth, ...] = ()
    recurring: tuple[int, ...] = ()
    collapses: tuple[tuple[int, int], ...] = ()
    norm: Baseline | None = None
    loss: Baseline | None = None
    judged_norm: int = 0
    judged_loss: int = 0
    diverged: bool = False
