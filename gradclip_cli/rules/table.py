"""The table of rules. Ids are stable and never reused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit, Severity
from gradclip_cli.model.run import GRAD_NORM, LOSS, Run
from gradclip_cli.rules import events, evidence, threshold
from gradclip_cli.rules.loop import bound, coverage, order, ranks


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
    Rule("GC401", "clip-before-unscale", _E, (), order.clip_before_unscale),
    Rule("GC402", "clip-after-step", _E, (), order.clip_after_step),
    Rule("GC403", "clip-before-backward", _E, (), order.clip_before_backward),
    Rule("GC404", "clip-per-microbatch", _E, (), order.clip_per_microbatch),
    Rule("GC405", "grads-changed-after-clip", _E, (), order.grads_changed_after_clip),
    Rule("GC406", "partial-params", _E, (), coverage.partial_params),
    Rule("GC407", "empty-clip-list", _E, (), coverage.empty_clip_list),
    Rule("GC408", "norm-not-applied", _E, (), coverage.norm_not_applied),
    Rule("GC409", "separate-norms", _E, (), coverage.separate_norms),
    Rule("GC410", "no-clipping", _E, (), bound.no_clipping),
    Rule("GC411", "ranks-disagree", _E, (), ranks.ranks_disagree),
    Rule("GC412", "duplicate-params", _E, (), coverage.duplicate_params),
    Rule("GC413", "nonfinite-norm-used", _E, (), bound.nonfinite_norm_used),
    Rule("GC414", "max-norm-invalid", _E, (), bound.max_norm_invalid),
    Rule("GC415", "value-clip", _E, (), bound.value_clip),
    Rule("GC416", "double-clip", _W, (), bound.double_clip),
    Rule("GC417", "zero-grad-before-step", _E, (), order.zero_grad_before_step),
    Rule("GC418", "closure-recomputes-grads", _E, (), order.closure_recomputes_grads),
    Rule("GC419", "double-unscale", _E, (), order.double_unscale),
)
