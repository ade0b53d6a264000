"""The table of rules. Ids are stable and never reused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradclip_cli.model import GRAD_NORM, LOSS, Detection, Hit, Run, Severity
from gradclip_cli.rules import events, evidence, threshold


@dataclass(frozen=True, slots=True)
class Rule:
    """A row.

    Attributes:
        id, name: What findings carry; the name tells the pattern that is found, never the remedy.
        severity: Of its findings, unless a hit says otherwise.
        needs: Series it cannot do without; the engine skips it with a reason where one is missing.
        check: Run and detection -> hits. Raises `Unjudged` with a reason. Its docstring is the page
            that `gradclip explain ID` prints.
    """

    id: str
    name: str
    severity: Severity
    needs: tuple[str, ...]
    check: Callable[[Run, Detection], list[Hit]]

    @property
    def page(self) -> str:
        """The explain page, as written."""
        import inspect

        return inspect.getdoc(self.check) or ""


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

RULES: tuple[Rule, ...] = (
    Rule("GC101", "exploding-step", _W, (GRAD_NORM,), events.exploding_step),
    Rule("GC102", "loss-spike", _W, (LOSS,), events.loss_spike),
    Rule("GC103", "diverged", _E, (LOSS,), events.diverged),
    Rule("GC104", "nonfinite-norm", _E, (GRAD_NORM,), events.nonfinite_norm),
    Rule("GC105", "nonfinite-loss", _E, (LOSS,), events.nonfinite_loss),
    Rule("GC106", "norm-growth", _W, (GRAD_NORM,), events.norm_growth),
    Rule("GC107", "vanishing-norm", _W, (GRAD_NORM,), events.vanishing_norm),
    Rule("GC108", "overflow-streak", _W, (), events.overflow_streak),
    Rule("GC109", "dominant-tensor", _I, (GRAD_NORM,), events.dominant_tensor),
    Rule("GC201", "always-clipping", _W, (GRAD_NORM,), threshold.always_clipping),
    Rule("GC202", "never-clipping", _I, (GRAD_NORM,), threshold.never_clipping),
    Rule("GC203", "above-max-norm", _E, (GRAD_NORM,), threshold.above_max_norm),
    Rule("GC301", "sparse-log", _I, (), evidence.sparse_log),
    Rule("GC302", "post-clip-log", _W, (GRAD_NORM,), evidence.post_clip_log),
    Rule("GC303", "filtered-nonfinite", _E, (LOSS, GRAD_NORM), evidence.filtered_nonfinite),
    Rule("GC304", "rewound-steps", _I, (), evidence.rewound_steps),
    Rule("GC305", "no-grad-norm", _I, (), evidence.no_grad_norm),
    Rule("GC306", "short-run", _W, (), evidence.short_run),
    Rule("GC307", "damaged-file", _W, (), evidence.damaged_file),
)
