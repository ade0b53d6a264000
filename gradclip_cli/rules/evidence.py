"""GC3xx: what the log cannot show."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect import detect
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit, Severity
from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, NormStage, Rewind, Run, Sampling, Series
from gradclip_cli.rules.wording import Unjudged, count, number, place, unit

MIN_ROWS = 30


def sparse_log(run: Run, found: Detection) -> list[Hit]:
    """A log that does not hold every step.

    What it finds: Gradient norms (or, without any, losses) that were logged once in several steps.

    Why it matters: A bad step between two logged ones leaves no trace in a sampled norm, and a mean of the
    loss over many steps flattens a spike of one. "Nothing found" then means: nothing visible at this spacing.

    How it decides: The median distance between logged steps is 2 or more.

    What to do: Log every step while something is wrong (in the Hugging Face Trainer `logging_steps=1`).

    When it is wrong: Where the step counter counts something else (samples, tokens, micro-batches).
    """
    series = run.grad_norm or run.loss
    if series is None:
        raise Unjudged("neither a gradient norm nor a loss in this log")
    if not run.steps_known:
        raise Unjudged("the log has no step counter")
    if len(series) < 3:
        raise Unjudged(f"only {count(len(series), 'logged point')}")
    spacing = float(np.median(np.diff(series.steps)))
    # A recorded run holds every update: those between two of an optimizer's are the others'.
    if spacing < 2 or run.recorded is not None:
        return []
    if series.name == GRAD_NORM and series.sampling is not Sampling.WINDOW_MEAN:
        text = f"one gradient norm in {spacing:,.0f} steps is logged; an explosion in between leaves no trace here"
    elif series.sampling is Sampling.WINDOW_MEAN:
        text = f"each logged value is a mean over {spacing:,.0f} steps; a bad step is flattened by that much"
    else:
        text = f"one loss in {spacing:,.0f} steps is logged; a short spike in between is flattened or leaves no trace"
    return [Hit(text, int(series.steps[0]), int(series.steps[-1]), {"median_spacing_steps": spacing})]


def post_clip_log(run: Run, found: Detection) -> list[Hit]:
    """Norms that were logged after clipping.

    What it finds: A log whose gradient norms were taken after clipping, so that they never exceed max_norm.

    Why it matters: How large the exploding norms were cannot be seen, GC101 cannot judge, and no threshold
    can be derived from the upper tail.

    How it decides: The format or the key says so; or at least 3 % of the norms lie within 0.1 % of their
    maximum, five times as many as in the 2 % below it.

    What to do: Log what `clip_grad_norm_` returns: the norm from before clipping.

    When it is wrong: Norms that are capped by something else than clipping pile up the same way.
    """
    if run.norm_stage is not NormStage.POST_CLIP:
        return []
    series = run.series["grad_norm"]
    values = series.values[np.isfinite(series.values)]
    if not len(values):
        raise Unjudged("no finite gradient norm")
    bound = run.max_norm or float(values.max())
    share = float(np.mean(values >= bound * (1 - 1e-3)))
    text = (
        f"the norms were logged after clipping ({run.stage_reason}); "
        f"{share:.0%} of them sit at {number(bound)}, and what they were before cannot be seen"
    )
    return [Hit(text, int(series.steps[0]), int(series.steps[-1]), {"at_bound_fraction": share, "max_norm": bound})]


def filtered_nonfinite(run: Run, found: Detection) -> list[Hit]:
    """A loss of exactly 0 beside a nan norm: a filter hid a nan.

    What it finds: Rows with a loss of exactly zero and a gradient norm that is not finite.

    Why it matters: The Hugging Face Trainer's `logging_nan_inf_filter` (on by default) leaves nan losses out of
    the logged mean; when all since the last row were nan, it writes 0.0. The backward and the update
    happened all the same: the model is nan, and the loss curve looks perfect.

    How it decides: Loss == 0.0 and norm nan or inf at the same logged step.

    What to do: Go back to the checkpoint before the first step named here; set `logging_nan_inf_filter=False`.

    When it is wrong: A loss that is truly zero while the norm was not computed.
    """
    loss, norm = run.series[LOSS], run.series[GRAD_NORM]
    # Zeros first: there are few, and two long step vectors are dear to intersect.
    zeros = np.flatnonzero(loss.values == 0.0)
    common, _, j = np.intersect1d(loss.steps[zeros], norm.steps, assume_unique=True, return_indices=True)
    if not len(zeros):
        return []
    if not len(common):
        raise Unjudged("where the loss is zero no norm is logged")
    hidden = np.flatnonzero(~np.isfinite(norm.values[j]))
    if not len(hidden):
        return []
    first, last = int(common[hidden[0]]), int(common[hidden[-1]])
    text = (
        f"the loss reads exactly 0 while the gradient norm is not finite, on {len(hidden):,} logged rows: "
        "nan losses were filtered out of the log"
    )
    return [Hit(text, first, last, {"num_points": len(hidden)})]


def rewound_steps(run: Run, found: Detection) -> list[Hit]:
    """A step counter that went back.

    What it finds: A resume from a checkpoint: steps that were logged, given up, and done again.

    Why it matters: The curve shows only one of the two. Where the abandoned part held the spike that made
    somebody restart, the surviving curve looks clean.

    How it decides: The logged step falls below one logged before. What was logged later wins. The abandoned
    part is judged by the same detection; where it held events this is a warning that tells them.

    What to do: If the restart was not meant, look at what happened at the last step before it.

    When it is wrong: Several writers on one file, or a counter that starts again each epoch, can look like it;
    both are told apart by their regularity and noted.
    """
    return [_rewind_hit(run, r) for r in run.rewinds]


def _rewind_hit(run: Run, r: Rewind) -> Hit:
    text = (
        f"the log goes back from {place(run, r.last_before)} to {r.resumed_at}: "
        f"{r.discarded:,} logged points were superseded by what came later"
    )
    evidence: dict[str, float] = {"resumed_at_step": r.resumed_at, "last_step_before": r.last_before, "num_superseded": r.discarded}
    severity = None
    branch = detect(r.branch.get(LOSS), r.branch.get(GRAD_NORM), r.branch.get(LR))
    lost = _events_after(r, branch)
    if lost:
        severity = Severity.WARNING
        text += "; the part given up held " + " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in lost.items())
        evidence |= {f"abandoned_{name.replace('-', '').replace(' ', '_')}s": count for name, count in lost.items()}
    return Hit(text, r.resumed_at, r.last_before, evidence, severity=severity)


def _events_after(r: Rewind, branch: Detection) -> dict[str, int]:
    """Events in the abandoned part, by a name for people."""

    def abandoned(series: Series | None, index: int) -> bool:
        return series is not None and int(series.steps[index]) >= r.resumed_at

    counts = {
        "exploding step": sum(abandoned(r.branch.get(GRAD_NORM), e.last) for e in branch.explosions),
        "loss spike": sum(abandoned(r.branch.get(LOSS), s.last) for s in branch.spikes),
        "non-finite value": sum(
            int(np.count_nonzero(~np.isfinite(s.values) & (s.steps >= r.resumed_at))) for n, s in r.branch.items() if n in (LOSS, GRAD_NORM)
        ),
    }
    return {name: count for name, count in counts.items() if count}


def no_grad_norm(run: Run, found: Detection) -> list[Hit]:
    """A log without gradient norms.

    What it finds: A run that logs its loss only.

    Why it matters: A clean loss does not prove that the run is stable: an exploding step shows in the norm
    several steps before the loss, and whether clipping acts cannot be told at all.

    How it decides: No key of the log is known as a gradient norm (`--grad-norm KEY` names one).

    What to do: Log the return value of `torch.nn.utils.clip_grad_norm_`.

    When it is wrong: Where the norm is logged under a name gradclip does not know.
    """
    if run.grad_norm is not None:
        return []
    return [Hit("no gradient norm is logged: exploding steps and clipping cannot be judged, only the loss", *_whole(run))]


def _whole(run: Run) -> tuple[int | None, int | None]:
    """First and last logged step."""
    steps = run.steps
    return (int(steps[0]), int(steps[-1])) if len(steps) else (None, None)


def short_run(run: Run, found: Detection) -> list[Hit]:
    """A log too short to trust its silence.

    What it finds: Fewer than 30 logged rows.

    Why it matters: What is usual in this run is not known well; the first 8 rows are not judged at all.

    How it decides: The longer of loss and gradient norm has fewer than 30 finite points. Below 16 no verdict
    is given unless something was found.

    What to do: Log more often, or let it run longer.

    When it is wrong: Never about the count; a short log may of course be all there is.
    """
    longest = max((int(np.count_nonzero(np.isfinite(s.values))) for n, s in run.series.items() if n in (LOSS, GRAD_NORM)), default=0)
    logged = max((len(s) for n, s in run.series.items() if n in (LOSS, GRAD_NORM)), default=0)
    if longest >= MIN_ROWS or (logged >= MIN_ROWS and longest == 0):
        return []
    if longest < logged:
        what = f"only {longest} finite points of {logged} logged"
    else:
        what = f"only {unit(run, logged)} logged" if logged else "no loss and no norm logged"
    return [Hit(f"{what}: too little to know what is usual", *_whole(run), evidence={"num_points": longest})]


def damaged_file(run: Run, found: Detection) -> list[Hit]:
    """A source that could be read only in part.

    What it finds: Truncated or corrupt records, lines or files, and what is missing because of them.

    Why it matters: What could not be read could not be judged.

    How it decides: Checksums, framing and syntax of the format; a loss or a norm that turns into text or goes
    blank while the log goes on; several values of the loss at each step that differ by a fifth and more than by
    chance, so that they are no ranks of one run. A record cut off at the very end of a live or killed run is the
    usual case and costs one point.

    What to do: Copy the file again from where it was written; nothing else restores it. Give each run a log of
    its own.

    When it is wrong: A run that is still being written can look truncated for a moment.
    """
    return [Hit(f"{d.where}: {d.what}; lost: {d.lost}") for d in run.damage]
