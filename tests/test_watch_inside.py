"""Optimizers of the user's own that bound the norm in their step, out of sight: told from their options and from their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradclip_cli.watch.inside import clips_inside

Params = list[torch.nn.Parameter]


class ByAttribute(torch.optim.Optimizer):
    def __init__(self, params: Params, limit: float = 0.5) -> None:
        super().__init__(params, {"lr": 0.1})
        self.limit = limit

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm().item()
        if self.limit and norm > self.limit:
            torch._foreach_mul_(gradients, self.limit / norm)


class ByGroup(torch.optim.Optimizer):
    def __init__(self, params: Params, clipping: float = 2.0) -> None:
        super().__init__(params, {"lr": 0.1, "clipping": clipping})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            total_norm = sum(float(p.grad.square().sum()) for p in group["params"]) ** 0.5
            group["coefficient"] = min(1.0, group["clipping"] / (total_norm + 1e-6))


class Derived(ByGroup):
    pass


class ByNumber(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        norm = torch.nn.utils.get_total_norm([p.grad for g in self.param_groups for p in g["params"]])
        if norm > 1.5:
            self.param_groups[0]["lr"] *= 0.5
        super().step()


class TrustRatio(torch.optim.Optimizer):
    """Layer-wise: norms of weights beside norms of gradients, and no bound."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, {"lr": 0.1, "trust": 0.001})

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            weight_norm, gradient_norm = p.norm(), p.grad.norm()
            if weight_norm > 0 and gradient_norm > 0:
                p.sub_(p.grad * self.defaults["trust"] * weight_norm / (gradient_norm + 1e-8))


@pytest.mark.parametrize(
    ("make", "bound"),
    {
        "attribute": (ByAttribute, {"self.limit": "0.5"}),
        "attribute-off": (lambda p: ByAttribute(p, limit=0.0), {}),
        "group": (ByGroup, {"group['clipping']": "2.0"}),
        "derived": (Derived, {"group['clipping']": "2.0"}),
        "number": (ByNumber, {"norm": "1.5"}),
        "ratio": (TrustRatio, {}),
        "torch": (torch.optim.AdamW, {}),
    }.values(),
    ids=["attribute", "attribute-off", "group", "derived", "number", "ratio", "torch"],
)
def test_bounds_in_the_step_of_an_own_class(make: Callable[[Params], torch.optim.Optimizer], bound: dict[str, str]) -> None:
    assert clips_inside(make([torch.nn.Parameter(torch.ones(2))])) == bound


def test_a_known_option_comes_first() -> None:
    class Known(ByAttribute):
        def __init__(self, params: Params) -> None:
            super().__init__(params)
            self.defaults["max_grad_norm"] = 3.0

    assert clips_inside(Known([torch.nn.Parameter(torch.ones(2))])) == {"max_grad_norm": "3.0"}


def test_a_class_without_source_has_no_bound_that_could_be_read() -> None:
    made: dict[str, Any] = {}
    exec("import torch\nclass Made(torch.optim.SGD):\n    def step(self):\n        return self.max_norm / norm", made)
    assert clips_inside(made["Made"]([torch.nn.Parameter(torch.ones(2))], lr=0.1)) == {}
