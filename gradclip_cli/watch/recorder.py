"""From what the observer sees to the rows of a recorded run. Values stay on the device until a block is written."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradclip_cli.model.run import Values
from gradclip_cli.runfile import RunWriter
from gradclip_cli.watch.events import Event, as_json, scalars_in
from gradclip_cli.watch.groups import Group
from gradclip_cli.watch.host import Host, Progress
from gradclip_cli.watch.measure import tensor_norms
from gradclip_cli.watch.observer import Observer
from gradclip_cli.watch.registry import Registry
from gradclip_cli.watch.signals import signals_wait

# A block is written when so many updates wait, or so long after the one before. Where nobody waits for a device that is sooner, as
# long as writing takes no more than this share of the time: SIGTERM without a handler (see `signals`), or the kernel, take what waits.
_BLOCK_UPDATES = 100
_BLOCK_S = 5.0
_BLOCK_ON_CPU_S, _ON_CPU_FRACTION = 2.0, 0.01
# Writes after each update may take so long in all; then one waits until so many times the duration of the one before have passed.
_FREE_S, _MOST_TIMES = 3.0, 4.0
# The trace holds every event of the first updates, then only those of updates that go another way than any before.
_TRACED_UPDATES = 200
_EPS = 1e-6


@dataclass(slots=True)
class _Clip:
    returned: torch.Tensor | float
    bound: float | torch.Tensor
    tensors: frozenset[int]
    given: int
    empty: int
    p: float | None
    whole: bool  # what it returned is the norm over all ranks


@dataclass(slots=True)
class _Row:
    """One update, its numbers still where they were made."""

    step: int
    optimizer: int
    tensors: list[int]
    norms: list[torch.Tensor]  # one behind the other they are those of `tensors`
    clips: list[_Clip]
    losses: list[tuple[torch.Tensor, Any]]
    rates: list[float | torch.Tensor]
    scale: Any
    at: float
    divided: Any = None
    found_inf: Any = None
    skipped: bool = False
    changed: bool | torch.Tensor = False  # perhaps, by the script's own code, since the backward
    batch: Mapping[str, float] = field(default_factory=dict)

    def scalars(self) -> list[torch.Tensor]:
        """All numbers that are still on a device, but for the norms."""
        held = [self.divided, self.found_inf, self.scale, self.changed, *self.rates, *(x for pair in self.losses for x in pair)]
        held += [x for c in self.clips for x in (c.returned, c.bound)]
        return [x for x in held if isinstance(x, torch.Tensor)]


class Recorder:
    """Collects rows and events, and writes them in blocks.

    Args:
        writer: Makes the writer of this rank's part at the first update (a process that never steps leaves nothing).
        every_update: Write after each update; for short runs that are read at once.
        batch: Gives what was seen of the batches since it was asked last.
        keep: Called right before the step with its number, and functions that give the gradients by name and the norm of all.
    """

    def __init__(
        self,
        writer: Callable[[], RunWriter],
        *,
        every_update: bool = False,
        batch: Callable[[], Mapping[str, float]] | None = None,
        keep: Callable[..., None] | None = None,
    ) -> None:
        self._make_writer = writer
        self._writer: RunWriter | None = None
        self._every_update = every_update
        self._batch = batch
        self._keep = keep
        self._rows: list[_Row] = []
        self._progress = Progress()
        # By thread: the row of the step that goes on, and the clips since the step before.
        self._currents: dict[int, _Row] = {}
        self._events: list[Event] = []
        self._update_events: list[Event] = []
        self._shapes: set[tuple[Any, ...]] = set()
        self._clips: dict[int, list[_Clip]] = {}
        self._clipped: frozenset[int] = frozenset()
        self._num_rows = 0
        self._written_at = time.monotonic()
        self._took_s = self._all_took_s = 0.0
        self._last_row_at: float | None = None
        self._num_tensors = 0
        self._max_norm: float | None = None
        self.observer: Observer | None = None

    @property
    def writer(self) -> RunWriter:
        """The writer of this rank's part, made when it is first needed."""
        if self._writer is None:
            self._writer = self._make_writer()
        return self._writer

    def set_header(self, **values: Any) -> None:
        """Add to the header, where there is one."""
        if self._writer is not None:
            self._writer.set_header(**values)

    # --- what the observer calls

    def event(self, event: Event) -> None:
        """Take an event of the trace."""
        self._update_events.append(event)
        self._progress.mark(x for x in event.values() if isinstance(x, torch.Tensor))
        kind = event["k"]
        if (
            kind == "clip"
            and event["how"] == "norm"
            and event["returned"] is not None
            and isinstance(event["bound"], int | float | torch.Tensor)
        ):
            # A block of rows holds as many sets; nearly always it is one and the same.
            tensors = frozenset(event["tensors"])
            self._clipped = self._clipped if tensors == self._clipped else tensors
            self._clips.setdefault(self._thread, []).append(
                _Clip(event["returned"], event["bound"], self._clipped, event["given"], event["empty"], event["p"], event["whole"])
            )
        elif kind == "skip":
            self._skipped(event)

    def use(self, o: int, optimizer: torch.optim.Optimizer, event: Event) -> None:
        """Measure the gradients the optimizer is about to use."""
        observer = self.observer
        assert observer is not None
        owned = observer.registry.owned[o]
        pairs = [(i, g) for i in owned if (p := observer.registry.parameter(i)) is not None and (g := p.grad) is not None]
        norms = tensor_norms([g for _, g in pairs])
        clips = self._clips.get(self._thread, [])
        row = _Row(observer.updates + 1, o, [i for i, _ in pairs], norms, clips, list(observer.losses()), [], None, time.monotonic())
        row.rates = [_rate(group.get("lr", math.nan)) for group in optimizer.param_groups]
        row.divided, row.found_inf = event["divided"], event["skipped"]
        row.changed = event["by_own_code"]
        scales = [s for _, s in row.losses if not isinstance(s, float) or s != 1.0]
        row.scale = scales[-1] if scales else None
        if self._batch is not None:
            # A step that is measured again (a closure, clipping in its own code) has the batches it had before.
            current = self._currents.get(self._thread)
            row.batch = self._batch() or (current.batch if current is not None else {})
        self._currents[self._thread] = row
        if self._keep is not None and norms:
            registry = observer.registry
            self._keep(
                row.step,
                lambda: _by_name(registry, pairs),
                lambda: clips[-1].returned if clips else _total(norms),
                bound=clips[-1].bound if clips else None,
                scale=row.divided,
            )

    def update(self, o: int) -> None:
        """The step is over."""
        self._add(self._currents.pop(self._thread, None))
        self._clips.pop(self._thread, None)
        self._keep_events()
        if self._is_cheap() or len(self._rows) >= _BLOCK_UPDATES or time.monotonic() - self._written_at > self._longest_s():
            self.flush()

    def _longest_s(self) -> float:
        norms = self._rows[-1].norms if self._rows else []
        on_cpu = bool(norms) and all(v.device.type == "cpu" for v in norms)
        return min(_BLOCK_S, max(_BLOCK_ON_CPU_S, self._took_s / _ON_CPU_FRACTION)) if on_cpu else _BLOCK_S

    @property
    def _thread(self) -> int:
        assert self.observer is not None
        return self.observer.thread

    def _add(self, row: _Row | None) -> None:
        if row is not None:
            self._num_rows += 1
            row.step = self._num_rows
            self._rows.append(row)
            self._progress.mark((*row.norms, *row.scalars()))

    def _skipped(self, event: Event) -> None:
        observer = self.observer
        assert observer is not None
        clips = self._clips.get(self._thread, [])
        row = _Row(observer.updates + 1, event["o"], [], [], clips, list(observer.losses()), [], event["scale"], time.monotonic())
        row.skipped = True
        if self._batch is not None:
            row.batch = self._batch()
        self._currents[self._thread] = row

    def _keep_events(self) -> None:
        observer = self.observer
        assert observer is not None
        shape = tuple((e["k"], e["site"], e.get("o"), len(e.get("tensors", ()))) for e in self._update_events if e["k"] != "hand")
        if observer.updates <= _TRACED_UPDATES or shape not in self._shapes:
            self._events += self._update_events
        if len(self._shapes) < 1000:
            self._shapes.add(shape)
        self._update_events = []

    def let_go(self) -> None:
        """Nothing more is measured: what waits to be written is kept, and nothing besides."""
        self._batch = self._keep = None

    @property
    def num_written(self) -> int:
        """Updates that can be read from the disk."""
        return 0 if self._writer is None else self._writer.num_updates

    # --- writing

    def _is_cheap(self) -> bool:
        """Whether writing after each update is asked for, and takes little time, or a small part of it."""
        waited_s = time.monotonic() - self._written_at
        return self._every_update and (self._all_took_s < _FREE_S or waited_s > _MOST_TIMES * self._took_s)

    def flush(self) -> None:
        """Write what is there. The one moment that waits for the device."""
        begun, is_first = time.monotonic(), self._writer is None
        with signals_wait(), torch._C.DisableTorchFunction():
            self._flush()
        self._written_at = time.monotonic()
        # To make the files takes its time once.
        self._took_s = 0.0 if is_first else self._written_at - begun
        self._all_took_s += self._took_s

    def _flush(self) -> None:
        observer = self.observer
        if observer is None or not (self._rows or self._events):
            return
        rows, self._rows = self._rows, []
        events, self._events = self._events, []
        if self._writer is None and not rows:
            self._events = events
            return
        writer = self.writer
        if len(observer.registry) > self._num_tensors:
            writer.add_tensors(observer.registry.describe()[self._num_tensors :])
            self._num_tensors = len(observer.registry)
        scalars = [x for row in rows for x in row.scalars()] + list(scalars_in(events))
        on_host = Host(scalars, [v for row in rows for v in row.norms], self._progress)
        if rows:
            self._write_rows(writer, rows, on_host)
        if events:
            writer.append_events([as_json(e, on_host) for e in events])

    def close(self, ended: str) -> None:
        """Write the rest and how the run ended."""
        # Where the script died within a step: what it was about to use is worth having.
        while self._currents:
            self._add(self._currents.popitem()[1])
        self._events += self._update_events
        self._update_events = []
        self.flush()
        if self._writer is not None:
            self._writer.close(ended)

    def _write_rows(self, writer: RunWriter, rows: list[_Row], on_host: Host) -> None:
        n = len(rows)
        norms = np.full((n, self._num_tensors), np.nan, np.float32)
        vectors = iter(on_host.vectors)
        columns: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}

        def put(name: str, i: int, value: float) -> None:
            if name not in columns:
                columns[name] = np.full(n, np.nan)
            columns[name][i] = value

        for name in ("grad_norm", "grad_norm_used", "loss"):
            columns[f"has_{name}"] = np.zeros(n)
        # Where this rank holds shards, and where a clip told it the norm over all ranks.
        is_part, is_whole = np.zeros((2, n), bool)
        for i, row in enumerate(rows):
            tensor = np.concatenate([np.empty(0), *islice(vectors, len(row.norms))]) / on_host(row.divided, 1.0)
            norms[i, row.tensors] = tensor
            used = math.sqrt(float(np.square(tensor, dtype=np.float64).sum()))
            before, coefficient, bound, whole = _before_clipping(row, tensor, used, on_host)
            is_part[i] = any(len(ranks) != 1 for _, ranks in self._groups(row.optimizer))
            is_whole[i] = whole
            if row.norms:
                put("grad_norm_used", i, used)
            is_before = bound is not None or (bool(row.norms) and not on_host(row.changed))
            if is_before:
                put("grad_norm", i, before)
            columns["has_grad_norm_used"][i] = bool(row.norms)
            columns["has_grad_norm"][i] = is_before
            if bound is not None:
                put("max_norm", i, bound)
                put("clip_coef", i, coefficient)
                if math.isfinite(bound) and bound != self._max_norm:
                    self._max_norm = bound
                    writer.set_header(max_norm=bound)
            if row.losses:
                put("loss", i, sum(on_host(loss) / on_host(scale) for loss, scale in row.losses))
                columns["has_loss"][i] = 1
                put("num_micro_batches", i, len(row.losses))
            rates = [on_host(rate) for rate in row.rates]
            for g, rate in enumerate(rates):
                if g == 0 or rate != rates[0]:
                    put("lr" if g == 0 else f"lr/{g}", i, rate)
            if row.scale is not None:
                put("loss_scale", i, on_host(row.scale))
                put("skipped", i, on_host(row.found_inf, float(row.skipped)))
            if self._last_row_at is not None:
                put("step_s", i, row.at - self._last_row_at)
            self._last_row_at = row.at
            put("optimizer", i, row.optimizer)
            for name, value in row.batch.items():
                put(name, i, value)
        writer.append(np.array([r.step for r in rows], np.int64), columns, norms, in_events=_of_all_ranks(columns, is_part, is_whole))

    def _groups(self, optimizer: int) -> list[Group]:
        assert self.observer is not None
        return self.observer.registry.sharded[optimizer]


def _of_all_ranks(columns: Mapping[str, Values], is_part: npt.NDArray[np.bool_], is_whole: npt.NDArray[np.bool_]) -> dict[str, Values]:
    """What one rank's event file shows of norms: those over all ranks, as far as it knows them. A reader of the run adds up the shards."""
    if not is_part.any():
        return {}
    there = {name: np.where(is_part, is_whole, 1.0) * columns[name] for name in ("has_grad_norm", "has_grad_norm_used")}
    if not is_whole.any():
        return there
    return there | {"grad_norm_used": np.where(is_part, columns["grad_norm"] * columns["clip_coef"], columns["grad_norm_used"])}


def _by_name(registry: Registry, pairs: list[tuple[int, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    tensors = registry.describe()
    return [(tensors[i].name, g) for i, g in pairs]


def _before_clipping(row: _Row, tensor: np.ndarray[Any, Any], used: float, on_host: Host) -> tuple[float, float, float | None, bool]:
    """Norm before clipping, coefficient of all calls together, bound, and whether the norm is that over all ranks.

    Each tensor's norm divided by the coefficients of the calls that covered it. Where one call covered just these tensors, what it
    returned is that norm.
    """
    tensors = set(row.tensors)
    clips = [(c, on_host(c.returned), on_host(c.bound)) for c in row.clips]
    clips = [
        (c, returned, bound)
        for c, returned, bound in clips
        if math.isfinite(bound) and bound > 0 and (row.skipped or not c.tensors.isdisjoint(tensors))
    ]
    if not clips:
        return used, math.nan, None, False
    factors = [min(1.0, bound / (returned + _EPS)) if math.isfinite(returned) else math.nan for _, returned, bound in clips]
    coefficient = math.nan if any(map(math.isnan, factors)) else min(factors)
    only, returned, bound = clips[-1]
    # The norm that is recorded is the L2 norm, whatever the call clipped by.
    if row.skipped or (
        len(clips) == 1
        and only.p in (None, 2.0)
        and only.tensors >= tensors
        and len(only.tensors) == only.given == len(tensors) + only.empty
        and row.scale is None
    ):
        return returned, coefficient, bound, only.whole
    factor = np.ones(len(row.tensors))
    for f, (c, _, _) in zip(factors, clips, strict=True):
        factor *= f if c.tensors >= tensors else [f if t in c.tensors else 1.0 for t in row.tensors]
    with np.errstate(divide="ignore", invalid="ignore"):
        before = math.sqrt(float(np.square(tensor / factor, dtype=np.float64).sum()))
    # Clips one behind the other multiply, those of different tensors act on their parts.
    return before, used / before if len(clips) > 1 and 0 < before < math.inf else coefficient, bound, False


def _rate(rate: Any) -> float | torch.Tensor:
    """A copy: a schedule writes into the tensor."""
    return rate.detach().clone() if isinstance(rate, torch.Tensor) else float(rate)


def _total(norms: list[torch.Tensor]) -> torch.Tensor | float:
    """The norm of all. Waits for the devices where they are several."""
    each = [torch.linalg.vector_norm(v) for v in norms]
    return each[0] if len(each) == 1 else math.hypot(*map(float, each))
