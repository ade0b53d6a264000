"""The table of checks. Ids are stable and never reused; the hundreds are the family."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gradclip_cli.errors import UsageError
from gradclip_cli.verify import contract, kinds, nonfinite, optimizers, order, sharding, sizes, training
from gradclip_cli.verify.bench import Bench
from gradclip_cli.verify.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Trial:
    """A row: one check of the battery.

    Attributes:
        id, name: What reports carry.
        rule: The rule a failure stands for.
        run: Raises `Unjudged` with a reason.
        ranks: The fewest ranks it needs.
        builds_on_contract: It means something only where one call on one device does what the contract says (B101 to B106).
    """

    id: str
    name: str
    rule: str
    run: Callable[[Bench], Outcome]
    ranks: int = 1
    builds_on_contract: bool = True

    @property
    def is_contract(self) -> bool:
        """Whether others build on it."""
        return "B101" <= self.id <= "B106"


TRIALS: tuple[Trial, ...] = (
    Trial("B101", "total-norm", "GC501", contract.total_norm, builds_on_contract=False),
    Trial("B102", "coefficient", "GC502", contract.coefficient, builds_on_contract=False),
    Trial("B103", "direction", "GC503", contract.direction, builds_on_contract=False),
    Trial("B104", "unchanged-below-bound", "GC504", contract.unchanged_below_bound, builds_on_contract=False),
    Trial("B105", "bound-met", "GC502", contract.bound_met, builds_on_contract=False),
    Trial("B106", "returns-norm-before", "GC501", contract.returns_norm_before, builds_on_contract=False),
    Trial("B107", "two-steps-agree", "GC502", contract.two_steps_agree),
    Trial("B108", "value-clipping-differs", "GC503", contract.value_clipping_differs, builds_on_contract=False),
    Trial("B201", "large-tensor", "GC501", sizes.large_tensor),
    Trial("B202", "half-precision-norm", "GC505", sizes.half_precision_norm, builds_on_contract=False),
    Trial("B203", "tiny-and-zero", "GC504", sizes.tiny_and_zero),
    Trial("B204", "none-and-empty", "GC501", sizes.none_and_empty),
    Trial("B205", "mixed-dtypes", "GC502", kinds.mixed_dtypes),
    Trial("B206", "mixed-devices", "GC502", kinds.mixed_devices),
    Trial("B207", "sparse-gradients", "GC501", kinds.sparse_gradients),
    Trial("B208", "tied-parameters", "GC501", kinds.tied_parameters),
    Trial("B209", "large-half-tensor", "GC505", sizes.large_half_tensor),
    Trial("B301", "inf-gradient", "GC506", nonfinite.inf_gradient),
    Trial("B302", "nan-gradient", "GC506", nonfinite.nan_gradient),
    Trial("B303", "error-if-nonfinite", "GC506", nonfinite.error_if_nonfinite, builds_on_contract=False),
    Trial("B401", "accumulation", "GC502", order.accumulation),
    Trial("B402", "amp-unscale-first", "GC508", order.amp_unscale_first),
    Trial("B403", "scaler-skips-overflow", "GC508", order.scaler_skips_overflow),
    Trial("B404", "bf16-autocast", "GC508", order.autocast),
    Trial("B405", "parameter-groups", "GC503", order.parameter_groups),
    Trial("B501", "sgd", "GC502", optimizers.sgd),
    Trial("B502", "momentum", "GC502", optimizers.momentum),
    Trial("B503", "adamw", "GC502", optimizers.adamw),
    Trial("B504", "adafactor", "GC502", optimizers.adafactor),
    Trial("B505", "muon", "GC502", optimizers.muon),
    Trial("B600", "process-group", "GC507", sharding.process_group, ranks=2, builds_on_contract=False),
    Trial("B601", "ranks-agree", "GC507", sharding.ranks_agree, ranks=2),
    Trial("B602", "ddp", "GC507", sharding.ddp, ranks=2),
    Trial("B603", "fsdp2", "GC507", sharding.fsdp2, ranks=2),
    Trial("B604", "fsdp1", "GC507", sharding.fsdp1, ranks=2, builds_on_contract=False),
    Trial("B605", "tensor-parallel", "GC507", sharding.tensor_parallel, ranks=2),
    Trial("B606", "two-dimensional-mesh", "GC507", sharding.two_dimensional_mesh, ranks=4),
    Trial("B607", "mixed-meshes", "GC507", sharding.mixed_meshes, ranks=2),
    Trial("B608", "local-shard-mistake", "GC507", sharding.local_shard_mistake, ranks=2),
    Trial("B701", "bad-batch", "GC502", training.bad_batch),
)


def select(wanted: Iterable[str]) -> tuple[Trial, ...]:
    """The checks with these rules, or whose id or name begins so; all where none is given.

    Raises:
        UsageError: Where one of them is no such thing.
    """
    names = [part for w in wanted for part in w.replace(",", " ").split()]
    if not names:
        return TRIALS
    chosen: set[str] = set()
    for name in names:
        found = [
            t.id
            for t in TRIALS
            if name.lower() == t.rule.lower() or t.id.lower().startswith(name.lower()) or t.name.startswith(name.lower())
        ]
        if not found:
            raise UsageError(f"--select: there is no check {name!r}", hint="`gradclip verify --list` shows them all")
        chosen.update(found)
    return tuple(t for t in TRIALS if t.id in chosen)
