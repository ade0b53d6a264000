"""Running the battery: in this process, in local ranks that it starts, or in the ranks `torchrun` started."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from gradclip_cli.errors import GradclipError, UsageError
from gradclip_cli.model.check import Status
from gradclip_cli.verify import local
from gradclip_cli.verify.bench import Bench, name_of
from gradclip_cli.verify.device import num_devices, resolve_device, resolve_dtypes, supported
from gradclip_cli.verify.judge import Judged, judge, skipped
from gradclip_cli.verify.options import Options
from gradclip_cli.verify.outcome import Outcome, first_line
from gradclip_cli.verify.ranks import Parted, Ranks, join
from gradclip_cli.verify.table import Trial, select

Started = Callable[[Trial], None]


@dataclass(frozen=True, slots=True)
class Battery:
    """The result.

    Attributes:
        device, dtypes, world_size, torch: On what it was run; the dtypes as a list in words.
        judged: In the order of the table.
    """

    device: str
    dtypes: str
    world_size: int
    torch: str
    judged: tuple[Judged, ...]


def run(options: Options, started: Started = lambda trial: None) -> Battery:
    """Make the checks that are asked for.

    Args:
        started: Called with each check before it is made.

    Raises:
        UsageError: Where the options contradict one another.
        GradclipError: Where there is no such device, or not enough of them.
    """
    trials = select(options.wanted)
    dtypes = resolve_dtypes(options.dtypes)
    under_torchrun = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    device = resolve_device(options.device, int(os.environ.get("LOCAL_RANK", "0")) if under_torchrun else 0)
    if not (dtypes := supported(dtypes, device)):
        raise GradclipError(
            f"--dtype {','.join(options.dtypes)}: {device} has no such numbers", hint="without --dtype, those it has are checked"
        )
    bench = Bench(device, dtypes, options.max_norm, options.elements, options.clip)
    if under_torchrun:
        return _under_torchrun(options, trials, bench, started)
    world_size = options.world_size or 1
    _check_room(options, bench, world_size)
    return _here(options, trials, bench, world_size, started)


def _battery(bench: Bench, world_size: int, judged: Sequence[Judged]) -> Battery:
    return Battery(str(bench.device), ", ".join(map(name_of, bench.dtypes)), world_size, torch.__version__, tuple(judged))


def _check_room(options: Options, bench: Bench, world_size: int) -> None:
    kind = bench.device.type
    room = num_devices(bench.device)
    if world_size == 1 or room is None:
        return
    if ":" in options.device:
        raise UsageError(
            f"--world-size {world_size}: --device {options.device} is one device", hint=f"`--device {kind}` gives each rank one"
        )
    if world_size > room:
        devices = f"{room} device{'s' if room != 1 else ''}"
        raise GradclipError(
            f"--world-size {world_size}: there is {devices} of kind {kind} here, each rank needs one", hint="fewer ranks, or `--device cpu`"
        )


def _obstacle(trial: Trial, world_size: int, broken: Trial | None) -> str | None:
    """Why a check need not be tried."""
    if trial.ranks > world_size:
        return f"needs at least {trial.ranks} ranks (`--world-size {trial.ranks}`)"
    if broken is not None and trial.builds_on_contract:
        return f"builds on what {broken.id} {broken.name} found broken"
    return None


def _in_turn(trials: Sequence[Trial], world_size: int, make: Callable[[Trial], Judged], started: Started) -> dict[str, Judged]:
    results: dict[str, Judged] = {}
    broken: Trial | None = None
    for trial in trials:
        if reason := _obstacle(trial, world_size, broken):
            results[trial.id] = skipped(trial, reason)
            continue
        started(trial)
        result = results[trial.id] = make(trial)
        if trial.is_contract and result.status is Status.FAIL:
            broken = broken or trial
    return results


def _here(options: Options, trials: Sequence[Trial], bench: Bench, world_size: int, started: Started) -> Battery:
    """Checks of one rank in this process, those of several in processes of their own."""
    results = _in_turn([t for t in trials if t.ranks == 1], world_size, lambda t: judge(t, bench), started)
    broken = next((j.trial for j in results.values() if j.trial.is_contract and j.status is Status.FAIL), None)
    ready = []
    for trial in trials:
        if trial.ranks == 1:
            continue
        if reason := _obstacle(trial, world_size, broken):
            results[trial.id] = skipped(trial, reason)
        else:
            ready.append(trial)
    results |= local.run(options, bench.dtypes, ready, world_size, started)
    return _battery(bench, world_size, [results[t.id] for t in trials])


def _under_torchrun(options: Options, trials: Sequence[Trial], bench: Bench, started: Started) -> Battery:
    """Every check on every rank; of one-rank checks the worst answer counts."""
    world_size = int(os.environ["WORLD_SIZE"])
    if options.world_size not in (None, world_size):
        raise UsageError(
            f"--world-size {options.world_size}: torchrun started {world_size} ranks", hint="leave --world-size out under torchrun"
        )
    if bench.device.type == "cuda":
        # A collective that times out must raise here, not end the process from a thread of its own.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    try:
        group = join(bench.device, options.timeout_s)
    except (RuntimeError, ValueError) as e:
        raise GradclipError(
            f"the ranks did not find one another: {first_line(e)}", hint="a longer --timeout, or see what torchrun says"
        ) from e
    bench = replace(bench, ranks=group)
    # Remarks on the layouts chosen here, once a rank, are none of the user's business.
    logging.getLogger("torch").setLevel(logging.ERROR)
    lost: Trial | None = None

    def make(trial: Trial) -> Judged:
        nonlocal lost
        if lost is not None:
            return skipped(trial, f"the ranks lost one another in {lost.id} {lost.name}")
        begin = time.perf_counter()
        try:
            return _merged(judge(trial, bench), group)
        except Parted as e:
            return Judged(trial, Status.FAIL, _left_early(e, group), time.perf_counter() - begin)
        except RuntimeError as e:
            lost = trial
            return Judged(trial, Status.FAIL, Outcome(False, f"the ranks lost one another: {first_line(e)}"), time.perf_counter() - begin)

    results = _in_turn(trials, world_size, make, started)
    if lost is None:
        dist.destroy_process_group()
    return _battery(bench, world_size, list(results.values()))


def _merged(mine: Judged, group: Ranks) -> Judged:
    """The worst answer of all ranks, with the ranks that gave it. A collective."""
    answers: list[tuple[Status, Outcome]] = group.gather((mine.status, mine.outcome), "answer")
    for bad in (Status.FAIL, Status.SKIP):
        ranks = [r for r, (status, _) in enumerate(answers) if status is bad]
        if ranks:
            outcome = answers[ranks[0]][1]
            if len(ranks) < group.world_size:
                outcome = replace(outcome, detail=f"rank {', '.join(map(str, ranks[:8]))}: {outcome.detail}")
            return Judged(mine.trial, bad, outcome, mine.seconds)
    return mine


def _left_early(parted: Parted, group: Ranks) -> Outcome:
    """What the ranks say that had an answer before the others; they are elsewhere for a rank in the check, and the others for them."""
    answers = {r: v[1] for r, v in parted.others.items() if isinstance(v, tuple) and isinstance(v[0], Status)}
    if not answers:
        return Outcome(False, f"rank {group.rank} left this check before rank {', '.join(map(str, parted.others))}")
    rank, outcome = next(iter(answers.items()))
    return Outcome(False, f"rank {rank} left this check early: {outcome.detail}", {"first_wrong_rank": float(rank)})
