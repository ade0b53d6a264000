"""The checks of several ranks, with real processes: clean, with a rank that clips differently, and with ranks that are lost."""

from __future__ import annotations

import os
import sys

import pytest

torch = pytest.importorskip("torch")

from gradclip_cli.model.check import Status  # noqa: E402
from gradclip_cli.verify import Battery, Options, run  # noqa: E402
from tests import broken_clips as broken  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="no process groups here")


def battery(world_size: int, *wanted: str, **options: object) -> Battery:
    return run(Options(device="cpu", world_size=world_size, wanted=wanted, **options))  # type: ignore[arg-type]


def by_id(result: Battery) -> dict[str, tuple[Status, str]]:
    return {j.trial.id: (j.status, j.outcome.detail) for j in result.judged}


def test_four_ranks_pass() -> None:
    result = by_id(battery(4, "B6"))
    assert {s for s, _ in result.values()} == {Status.PASS}, result
    assert result["B600"][1] == "4 ranks over gloo add up right"
    assert "on all 4 ranks the norm is the unsharded one" in result["B603"][1]
    assert "32 sets of planted DTensors" in result["B603"][1]
    assert "one call refuses them (RuntimeError" in result["B607"][1]


def test_one_rank_is_not_enough() -> None:
    result = by_id(battery(1, "B6"))
    assert {s for s, _ in result.values()} == {Status.SKIP}
    assert result["B602"][1] == "needs at least 2 ranks (`--world-size 2`)"
    assert result["B606"][1] == "needs at least 4 ranks (`--world-size 4`)"


def test_a_rank_that_clips_differently_is_named() -> None:
    result = by_id(battery(2, "B1", "B601", "B602", "B603", "B605", dtypes=("float32",), clip=broken.last_rank_skips_or_local_shards))
    assert {i for i, (s, _) in result.items() if s is Status.FAIL} == {"B601", "B602", "B603", "B605"}, result
    assert "DDP: rank 1 scaled the gradients by 1; the coefficient is 0.27" in result["B602"][1]
    assert "rank 1 scaled the gradients by 1" in result["B601"][1]
    assert "FSDP2: every rank scaled the gradients by" in result["B603"][1]


def test_a_rank_that_raises_costs_its_check_and_no_other() -> None:
    result = by_id(battery(2, "B601", "B604", dtypes=("float32",), clip=broken.second_rank_raises))
    assert result["B601"] == (Status.FAIL, "rank 1 raised ValueError: not on this rank")
    # FSDP1 has a clipping method of its own, and a new group of ranks goes on with it.
    assert result["B604"][0] is Status.PASS


def test_a_rank_that_dies_is_told() -> None:
    result = by_id(battery(2, "B600", "B601", "B604", dtypes=("float32",), clip=broken.second_rank_dies))
    assert result["B600"][0] is Status.PASS
    assert result["B601"] == (Status.FAIL, "rank 1 ended with exit status 7")
    assert result["B604"] == (Status.SKIP, "rank 1 died in B601 ranks-agree")


def test_a_rank_that_hangs_is_named_and_hangs_nobody() -> None:
    result = by_id(battery(2, "B600", "B601", "B604", dtypes=("float32",), clip=broken.second_rank_hangs, timeout_s=4.0))
    status, detail = result["B601"]
    assert status is Status.FAIL
    assert detail.startswith("rank 1 did not come to where the others wait within 4 s: it is in second_rank_hangs (")
    assert result["B604"] == (Status.SKIP, "the ranks lost one another in B601 ranks-agree")


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR"])
def test_a_stray_variable_is_no_torchrun(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    assert missing not in os.environ
    assert battery(1, "B204").world_size == 1
