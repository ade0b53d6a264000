"""GC5xx: this machine's clipping is wrong. `gradclip verify` finds them on a device, never in a log: they have a page and no function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import cleandoc

from gradclip_cli.model.finding import Finding, Severity


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """A row.

    Attributes:
        id, name: What findings carry.
        page: What `gradclip explain ID` prints, with the five parts every page has.
    """

    id: str
    name: str
    page: str
    severity: Severity = Severity.ERROR

    def finding(self, message: str, evidence: Mapping[str, float]) -> Finding:
        """A finding of this rule; it has no step."""
        return Finding(self.id, self.name, self.severity, message, None, None, evidence)


_PAGES = (
    (
        "GC501",
        "wrong-norm",
        """A total norm that comes out wrong.

        What it finds: Gradients whose norm is known, for which the clipping function on this device returns another one; or
        returns the norm from after clipping, passes gradients over, or loses digits in a large tensor.

        Why it matters: The coefficient is max_norm over that norm: with a norm that is too small the bound is exceeded, with one
        that is too large every step is shortened.

        How it decides: Planted gradients of float32, bfloat16, float16 and float64, p = 1, 2, 3 and inf, foreach and
        single-tensor, against a float64 sum on the CPU made from the definition. Allowed: 3 machine epsilons in half precision,
        1e-5 in float32, 1e-12 in float64; for one large tensor 0.1 %. The norm of a float32 tensor on a CPU is known to come out
        too small as tensors grow (PyTorch 2.13: 0.04 % at 10^7 elements, 1.1 % at 10^8, 19 % at 10^9).

        What to do: See which dtype, path and size the check names. For large tensors, take the norm in float64 or over parts of
        the tensor, or move the norm to a GPU; otherwise update PyTorch, or report it with the check's output.

        When it is wrong: A size given with --elements that no tensor of the model reaches. One tensor counts, not the sum.
        """,
    ),
    (
        "GC502",
        "wrong-coefficient",
        """Gradients not scaled by min(1, max_norm / norm).

        What it finds: Gradients above the bound that are scaled by another factor than the definition gives, or not at all; a
        norm afterwards above the bound; a bad batch that goes through.

        Why it matters: The bound that was set is not the one that holds.

        How it decides: The factor between gradients before and after (least squares, float64) against min(1, M / (G + 1e-6)),
        with or without the epsilon, within the rounding of the dtype; norms afterwards against M; updates of SGD and AdamW
        against their formulas.

        What to do: See the check that failed: the factor it names tells the mistake (the square of the norm, a factor of 2, a
        copy that was scaled). Look for a library that replaces torch.nn.utils.clip_grad_norm_.

        When it is wrong: A replaced clipping function that is meant to do something else.
        """,
    ),
    (
        "GC503",
        "direction-changed",
        """Clipping that turns the gradient.

        What it finds: Tensors of one call that are scaled by different factors, or elements that are cut off.

        Why it matters: Norm clipping is safe because it only shortens the step. Per-tensor and value clipping turn it, and
        mostly so when a gradient is large.

        How it decides: The cosine between the gradients before and after must be 1 within the square of the rounding (1e-13 in
        float32), and the factor of each tensor that of all within the rounding of the dtype.

        What to do: Clip all parameters in one call of clip_grad_norm_; value clipping is clip_grad_value_ and another method.

        When it is wrong: A replaced clipping function that clips per tensor on purpose.
        """,
    ),
    (
        "GC504",
        "changed-below-bound",
        """Gradients below the bound that are changed.

        What it finds: Gradients whose norm is below max_norm and that do not come back as they were.

        Why it matters: Clipping must be a safety net: a function that scales every gradient to the bound normalises, which is
        another training.

        How it decides: Gradients at 0.53 and 0.97 times the bound, tiny ones and zeros, may change by 2e-6 relative at most
        (PyTorch adds 1e-6 to the norm before it divides).

        What to do: See by how much they change: growth means a missing min(1, ...). With a max_norm of 1e-5 or less the 1e-6
        that PyTorch adds is felt: scale the loss instead.

        When it is wrong: A function that normalises on purpose.
        """,
    ),
    (
        "GC505",
        "half-precision-norm",
        """A norm that is accumulated in half precision.

        What it finds: float16 or bfloat16 gradients whose squares overflow, vanish or stop adding up, though their norm is an
        ordinary number of that dtype.

        Why it matters: An inf norm turns every finite gradient into zero, a norm of zero switches clipping off, and neither says so.

        How it decides: 4096 elements of 30 (squares sum to 3.7 million, float16 ends at 65504), 4096 of 1e-4 (squares below what
        float16 can hold), 512 tensors whose running sum bfloat16 cannot follow, and one large tensor; within 3 machine epsilons.

        What to do: Take the norm in float32, as torch.nn.utils does. Even then the total is rounded to the gradients' dtype: a
        norm above 65504 is inf in float16 (the check tells what happens here), so keep float16 gradients behind a GradScaler, or
        train in bfloat16 with float32 gradients.

        When it is wrong: Gradients that are float32, as under autocast, are not affected.
        """,
    ),
    (
        "GC506",
        "nonfinite-handling",
        """Inf and nan handled otherwise than PyTorch says.

        What it finds: A finite norm returned for gradients with an inf or nan; gradients left that the definition makes 0 or nan;
        error_if_nonfinite=True that raises nothing, or only after gradients were changed.

        Why it matters: A loop that watches the returned norm is blind then, and one bad value gets into the weights.

        How it decides: One inf or nan is planted. The definition gives a coefficient of 0 for inf (finite gradients become 0, the
        inf nan) and nan for nan; error_if_nonfinite must raise a RuntimeError and leave all gradients bit for bit.

        What to do: Clipping repairs no inf or nan: use error_if_nonfinite=True, or skip the step when the returned norm is not finite.

        When it is wrong: A replaced function that cleans gradients on purpose.
        """,
    ),
    (
        "GC507",
        "sharded-norm",
        """Ranks that do not clip by the whole gradient's norm.

        What it finds: A rank that scales by another coefficient, or not at all; a norm of a sharded gradient that is not the
        unsharded one; ranks that do not find one another, die, or wait for ever.

        Why it matters: Replicas that clip differently drift apart: it went unseen for two weeks in the training of a model of 176
        billion parameters, whose tensor-parallel ranks but the first did not clip.

        How it decides: DDP, FSDP2, FSDP1, tensor parallel and mixed meshes train the same small model as one rank alone, which
        gives the norm; every rank's norm and coefficient must be those, within the rounding of the dtype. Ranks are named.

        What to do: For FSDP1 call module.clip_grad_norm_, not torch.nn.utils. For DTensors pass them as they are, never
        to_local(). For several meshes take one norm each, put them together, then clip_grads_with_norm_. A rank that differs in
        the check with planted gradients has another version of PyTorch, or a broken device.

        When it is wrong: A time-out on a machine under load: raise --timeout.
        """,
    ),
    (
        "GC508",
        "amp-order",
        """Loss scaling or autocast that breaks clipping.

        What it finds: Gradients clipped after unscale_ that differ from those without a scaler; an overflow that was not skipped;
        float32 parameters with other gradients under autocast.

        Why it matters: Clipping scaled gradients divides the step by the loss scale, up to 65536 times; an overflow that is not
        skipped ends the training.

        How it decides: A small model with GradScaler at 65536 against the same without it, in the right order and in the wrong
        one; an infinite loss, after which no parameter may change and the scale must fall; bfloat16 autocast.

        What to do: scaler.unscale_(optimizer), then clip, then scaler.step(optimizer).

        When it is wrong: On devices where GradScaler is not used the check is skipped.
        """,
    ),
)

DEVICE_RULES: tuple[DeviceRule, ...] = tuple(DeviceRule(id, name, cleandoc(page)) for id, name, page in _PAGES)


def device_rule(id: str) -> DeviceRule:
    """The rule of this id."""
    return next(r for r in DEVICE_RULES if r.id == id)
