"""What `verify` and `analyze` say of loops that libraries run: Hugging Face Trainer, Lightning, Accelerate, DDP, FSDP.

Every loop is there as the library means it, and broken in ways the library permits. One process trains all loops of the libraries, and a
pair of ranks all those of several ranks, each watched as `gradclip verify` watches it; broken ones once more as `gradclip record` does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradclip_cli import read_run
from gradclip_cli.analysis import analyze, judge_loop
from gradclip_cli.model.run import Run
from tests.record_runs import ENV, write

# Watches a training twice, in runs of its own: read at every point, and as a recording is. The watcher goes through all objects for
# models; those of the libraries and of trainings that are over are there for the first loop of each library, which is enough.
TOLD = """
import gc, os
from gradclip_cli.watch import watch

def told(library, cases, train, twice=None):
    for name, options in cases.items():
        for run, exact in ((name, True), ("recorded-" + name, False)):
            if exact or (name in twice if twice else not name.startswith("right")):
                with watch(os.path.join(library, run), exact=exact):
                    train(**options)
                gc.collect()
                gc.freeze()
"""

HUGGING_FACE = """
import torch
from told import told
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        ids = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids.clone()}

def clip(parameters):
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)  # clips

class BehindTheStep(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model=None, **rest):
        clip(model.parameters())

class AtTheEnd(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **rest):
        clip(model.parameters())

class LayersOnly(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **rest):
        clip(model.model.layers.parameters())

class InACallback(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **rest):
        clip(model.parameters())

class Enlarged(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **rest):
        for p in model.parameters():
            p.grad.mul_(4)

class EachMicroBatch(Trainer):
    def training_step(self, *args, **options):
        loss = super().training_step(*args, **options)
        clip(self.model.parameters())
        return loss

def train(trainer=Trainer, callbacks=(), **options):
    set_seed(0)
    shape = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=16, **shape))
    common = dict(max_steps=4, per_device_train_batch_size=2, use_cpu=True, logging_steps=100, report_to=[], save_strategy="no")
    args = TrainingArguments("out", learning_rate=1e-2, disable_tqdm=True, **common, **{"max_grad_norm": 0.5, **options})
    trainer(model=model, args=args, train_dataset=Data(), callbacks=list(callbacks)).train()  # trains

told("hugging-face", {
    "right-float32": {},
    "right-bfloat16": {"bf16": True},
    "right-accumulation": {"gradient_accumulation_steps": 2},
    "right-callback": {"max_grad_norm": 0, "callbacks": [InACallback()]},
    "right-optimizer-that-clips-too": {"optim": "adafactor"},
    "behind-the-step": {"max_grad_norm": 0, "callbacks": [BehindTheStep()]},
    "at-the-end": {"max_grad_norm": 0, "callbacks": [AtTheEnd()]},
    "layers-only": {"max_grad_norm": 0, "callbacks": [LayersOnly()]},
    "micro-batches": {"max_grad_norm": 0, "trainer": EachMicroBatch, "gradient_accumulation_steps": 2},
    "enlarged": {"callbacks": [Enlarged()]},
    "off": {"max_grad_norm": 0},
}, train)
"""

LIGHTNING = """
import logging, warnings
warnings.filterwarnings("ignore")
import lightning.pytorch as pl
import torch
from told import told
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch, i):
        x, y = batch
        return (self.body(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)  # clips

class InTheStep(Net):
    def training_step(self, batch, i):
        self.clip()
        return super().training_step(batch, i)

class BehindBackward(Net):
    def on_after_backward(self):
        self.clip()

class BeforeTheStep(Net):
    def on_before_optimizer_step(self, optimizer):
        self.clip()

class AtTheEnd(Net):
    def on_train_batch_end(self, *args):
        self.clip()

class Overridden(Net):
    def configure_gradient_clipping(self, *args, **options):
        pass

class FirstLayerOnly(Net):
    def configure_gradient_clipping(self, *args, **options):
        torch.nn.utils.clip_grad_norm_(self.body[0].parameters(), 0.5)

class Manual(Net):
    def __init__(self, late=False):
        super().__init__()
        self.automatic_optimization, self.late = False, late

    def training_step(self, batch, i):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, i))
        if not self.late:
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer.step()
        if self.late:
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")

class ManualLate(Manual):
    def __init__(self):
        super().__init__(late=True)

def train(net=Net, **options):
    pl.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), 3 * torch.randn(24, 1))
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    pl.Trainer(accelerator="cpu", max_epochs=2, **quiet, **options).fit(net(), loader)  # trains

told("lightning", {
    "right": {"gradient_clip_val": 0.5},
    "right-accumulation": {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2},
    "right-bfloat16": {"gradient_clip_val": 0.5, "precision": "bf16-mixed"},
    "right-hook": {"net": BeforeTheStep, "accumulate_grad_batches": 2},
    "right-backward-hook": {"net": BehindBackward},
    "right-manual": {"net": Manual},
    "in-the-step": {"net": InTheStep},
    "in-the-step-accumulation": {"net": InTheStep, "accumulate_grad_batches": 2},
    "backward-hook-accumulation": {"net": BehindBackward, "accumulate_grad_batches": 2},
    "at-the-end": {"net": AtTheEnd},
    "overridden": {"net": Overridden, "gradient_clip_val": 0.5},
    "first-layer-only": {"net": FirstLayerOnly, "gradient_clip_val": 0.5},
    "manual-late": {"net": ManualLate},
    "by-value": {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"},
}, train)
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from told import told

def train(how, precision="no", steps=2):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=steps)
    torch.manual_seed(0)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    net, other = make(), make()
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), 3 * torch.randn(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
    for x, y in loader:
        with accelerator.accumulate(net):
            accelerator.backward((net(x).float() - y).square().mean())
            if how == "right" and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            elif how == "unguarded":
                accelerator.clip_grad_norm_(net.parameters(), 1.0)  # clips
            elif how == "wrong net" and accelerator.sync_gradients:
                torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            elif how == "head only" and accelerator.sync_gradients:
                torch.nn.utils.clip_grad_norm_(net[-1].parameters(), 1.0)
            elif how == "value" and accelerator.sync_gradients:
                accelerator.clip_grad_value_(net.parameters(), 0.1)
            optimizer.step()  # steps
            if how == "late" and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.zero_grad()

told("accelerate", {
    "right": {"how": "right"},
    "right-bfloat16": {"how": "right", "precision": "bf16"},
    "right-each-batch": {"how": "unguarded", "steps": 1},
    "unguarded": {"how": "unguarded"},
    "wrong-net": {"how": "wrong net"},
    "head-only": {"how": "head only"},
    "value": {"how": "value"},
    "late": {"how": "late"},
    "none": {"how": "none"},
}, train)
"""

# Started by torchrun, or starts its two ranks itself; trains the loops that it is told.
RANKS = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

def plain():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

def replicas():
    return torch.nn.parallel.DistributedDataParallel(plain())

def shards():
    net = plain()
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)

def first_kind():
    return FullyShardedDataParallel(plain(), device_id=torch.device("cpu"), use_orig_params=True)

def torchs(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)  # clips

def one_rank(net):
    if dist.get_rank() == 0:
        torchs(net)

def own_bound(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5 + 0.25 * dist.get_rank())

def own_shard(net):
    gradients = [p.grad.to_local() for p in net.parameters()]
    coefficient = min(1.0, 0.5 / float(torch.nn.utils.get_total_norm(gradients)))
    for g in gradients:
        g.mul_(coefficient)  # scales

def own_shard_by_torch(net):
    total = torch.nn.utils.get_total_norm([p.grad.to_local() for p in net.parameters()])
    torch.nn.utils.clip_grads_with_norm_(net.parameters(), 0.5, total)

def reduced_by_hand(net):
    squares = sum(p.grad.to_local().square().sum() for p in net.parameters())
    dist.all_reduce(squares)
    coefficient = min(1.0, 0.5 / squares.sqrt().item())
    for p in net.parameters():
        p.grad.to_local().mul_(coefficient)

def in_two_halves(net):
    total = torch.nn.utils.get_total_norm([p.grad for p in net.parameters()]).full_tensor()
    torch.nn.utils.clip_grads_with_norm_(net.parameters(), 0.5, total)

def last_layer(net):
    torch.nn.utils.clip_grad_norm_(net[-1].parameters(), 0.5)

def its_own(net):
    net.clip_grad_norm_(0.5)

def late_reduction(net):
    torchs(net)
    for p in net.parameters():
        dist.all_reduce(p.grad)

def reduction_first(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
    torchs(net)

def train(make, clip, micro_batches=1, clip_each=False):
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for i in range(4 * micro_batches):
        x, y = torch.randn(4, 4, generator=generator), 3 * torch.randn(4, 2, generator=generator)
        (net(x) - y).square().mean().backward()
        last = (i + 1) % micro_batches == 0
        if last or clip_each:
            clip(net)
        if last:
            optimizer.step()  # steps
            optimizer.zero_grad()

CASES = {
    "right-ddp": dict(make=replicas, clip=torchs),
    "right-ddp-accumulation": dict(make=replicas, clip=torchs, micro_batches=2),
    "right-reduction-by-hand": dict(make=plain, clip=reduction_first),
    "right-fsdp2": dict(make=shards, clip=torchs),
    "right-fsdp2-accumulation": dict(make=shards, clip=torchs, micro_batches=2),
    "right-fsdp2-by-hand": dict(make=shards, clip=reduced_by_hand),
    "right-fsdp2-two-halves": dict(make=shards, clip=in_two_halves),
    "right-fsdp1": dict(make=first_kind, clip=its_own),
    "ddp-one-rank": dict(make=replicas, clip=one_rank),
    "ddp-own-bound": dict(make=replicas, clip=own_bound),
    "ddp-micro-batches": dict(make=replicas, clip=torchs, micro_batches=2, clip_each=True),
    "late-reduction": dict(make=plain, clip=late_reduction),
    "fsdp2-own-shard": dict(make=shards, clip=own_shard),
    "fsdp2-own-shard-by-torch": dict(make=shards, clip=own_shard_by_torch),
    "fsdp2-last-layer": dict(make=shards, clip=last_layer),
    "fsdp1-torch": dict(make=first_kind, clip=torchs),
}

def work(rank, store, name):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    if name == "all":
        from told import told
        told("ranks", CASES, train, twice=("ddp-one-rank", "fsdp2-own-shard", "fsdp1-torch"))
    else:
        train(**CASES[name])
    dist.destroy_process_group()

if __name__ == "__main__":
    if len(sys.argv) == 3:
        import torch.multiprocessing as mp
        mp.start_processes(work, (os.path.abspath("store"), sys.argv[1]), nprocs=2, start_method=sys.argv[2])
    else:
        dist.init_process_group("gloo")
        train(**CASES[sys.argv[1]])
        dist.destroy_process_group()
"""

LIBRARIES = {"hugging-face": HUGGING_FACE, "lightning": LIGHTNING, "accelerate": ACCELERATE, "ranks": RANKS}
FOUND: Mapping[str, Mapping[str, str]] = {
    "hugging-face": {
        "behind-the-step": "GC402",
        "at-the-end": "GC402",
        "layers-only": "GC406",
        "micro-batches": "GC404",
        "enlarged": "GC405",
        "off": "GC410",
    },
    "lightning": {
        "in-the-step": "GC403",
        "in-the-step-accumulation": "GC403",
        "backward-hook-accumulation": "GC404",
        "at-the-end": "GC402",
        "overridden": "GC410",
        "first-layer-only": "GC406",
        "manual-late": "GC402",
        "by-value": "GC415",
    },
    "accelerate": {
        "unguarded": "GC404",
        "wrong-net": "GC406",
        "head-only": "GC406",
        "value": "GC415",
        "late": "GC402",
        "none": "GC410",
    },
    "ranks": {
        "ddp-one-rank": "GC411",
        "ddp-own-bound": "GC411",
        "ddp-micro-batches": "GC404",
        "late-reduction": "GC405",
        "fsdp2-own-shard": "GC411",
        "fsdp2-own-shard-by-torch": "GC411",
        "fsdp2-last-layer": "GC406",
        "fsdp1-torch": "GC411",
    },
}


def started(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command], cwd=folder, env=ENV | more, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each library with the runs of its loops."""
    folder = tmp_path_factory.mktemp("trained")
    write(folder, "told.py", TOLD)
    for library, code in LIBRARIES.items():
        write(folder, f"loops-{library}.py", code)
    write(folder, "main.py", f"import runpy\nfor name in {list(LIBRARIES)[:-1]}:\n    runpy.run_path(f'loops-{{name}}.py')")
    for command in (["main.py"], ["loops-ranks.py", "all", "fork"]):
        done = started(folder, sys.executable, *command)
        assert done.returncode == 0, done.stderr[-4000:]
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("recorded-"))


def run_of(path: Path) -> Run:
    run = read_run(path)
    assert run.recorded is not None
    return run


def rules(findings: Any) -> list[str]:
    return [f.rule for f in findings if f.rule.startswith("GC4")]


def lines(library: str, mark: str) -> set[str]:
    """The places of a script that end with a comment."""
    return {f"loops-{library}.py:{n}" for n, line in enumerate(LIBRARIES[library].splitlines(), 1) if line.endswith(f"# {mark}")}


def finding(path: Path) -> str:
    return next(f.message for f in judge_loop(run_of(path), path.name).findings if f.rule.startswith("GC4"))


@pytest.mark.parametrize("library", FOUND)
def test_loops_of_a_library(library: str, trained: Path) -> None:
    wanted = FOUND[library]
    names = names_in(trained / library)
    assert {name for name in names if not name.startswith("right")} == wanted.keys()
    wrong = []
    for name in names:
        verification = judge_loop(run_of(trained / library / name), name)
        expected = [wanted[name]] if name in wanted else []
        if (rules(verification.findings), verification.verdict) != (expected, "fail" if expected else "pass"):
            wrong.append((name, verification.verdict, [f.message for f in verification.findings]))
    assert wrong == []


@pytest.mark.parametrize("library", FOUND)
def test_a_recording_shows_the_same(library: str, trained: Path) -> None:
    for run in sorted((trained / library).iterdir()):
        name = run.name.removeprefix("recorded-")
        expected = [FOUND[library][name]] if name in FOUND[library] else []
        assert rules(analyze(run_of(run)).findings) == expected, run.name


def test_places_are_those_in_the_users_code(trained: Path) -> None:
    said = {(library, name): finding(trained / library / name) for library in FOUND for name in FOUND[library]}
    for library, made_by, names in (
        ("hugging-face", "", ("behind-the-step", "at-the-end", "layers-only", "micro-batches")),
        ("lightning", "", ("in-the-step", "backward-hook-accumulation", "at-the-end")),
        ("accelerate", "(via accelerate/accelerator.py:", ("unguarded",)),
        ("ranks", "", ("ddp-one-rank", "fsdp1-torch", "late-reduction")),
    ):
        for name in names:
            assert any(f"{place} {made_by}" in said[library, name] for place in lines(library, "clips")), said[library, name]
    for library, mark, made_by in (
        ("hugging-face", "trains", " (via accelerate/optimizer.py:"),
        ("lightning", "trains", " (via lightning/pytorch/"),
        ("accelerate", "steps", " (via accelerate/optimizer.py:"),
        ("ranks", "steps", ""),
    ):
        for name in FOUND[library]:
            if name != "manual-late":
                assert any(f"{place}{made_by}" in said[library, name] for place in lines(library, mark)), said[library, name]
    assert any(f"the clip at {place} " in said["ranks", "fsdp2-own-shard"] for place in lines("ranks", "scales"))


def test_numbers_are_measured(trained: Path) -> None:
    text = finding(trained / "hugging-face/enlarged")
    assert "are multiplied by 4 at loops-hugging-face.py:" in text
    assert "the clip left 0.5, the optimizer used 2;" in text
    recorded = run_of(trained / "ranks/ddp-one-rank").recorded
    assert recorded is not None
    before, used = (recorded.parts[1].columns[name][0] for name in ("grad_norm", "grad_norm_used"))
    assert before == used, "rank 1 does not clip"
    text = finding(trained / "ranks/ddp-one-rank")
    assert f"rank 0's copy of the same gradients by {0.5 / before:.3g} and rank 1's by 1 in update 1" in text
    assert "rank 1 does not clip" in text


def test_norms_of_shards_are_put_together(trained: Path) -> None:
    # The same network on the same batches: replicas hold what shards are parts of.
    replicas = run_of(trained / "ranks/right-ddp").series
    of_replicas = np.array([s.values for key, s in replicas.items() if key.startswith("grad_norm/")])
    for name in ("right-fsdp2", "right-fsdp2-by-hand", "right-fsdp2-two-halves", "right-fsdp1"):
        run = run_of(trained / "ranks" / name)
        assert "the norms are those over the shards of all ranks" in run.notes
        tensors = np.array([s.values for key, s in run.series.items() if key.startswith("grad_norm/")])
        np.testing.assert_allclose(np.sqrt(np.square(tensors).sum(axis=0)), 0.5, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(tensors[:, 0], of_replicas[:, 0], rtol=1e-3, err_msg=name)
        # By hand nothing tells the norm from before; it is the one that was used.
        before = np.full(4, 0.5) if "by-hand" in name else replicas["grad_norm"].values
        np.testing.assert_allclose(run.series["grad_norm"].values, before, rtol=1e-3)
    own = run_of(trained / "ranks/fsdp2-own-shard-by-torch")
    assert own.recorded is not None
    local = [part.columns["grad_norm"] for part in own.recorded.parts.values()]
    np.testing.assert_allclose(own.series["grad_norm"].values, np.hypot(*local), rtol=1e-6)
    np.testing.assert_allclose(own.series["grad_norm"].values[0], replicas["grad_norm"].values[0], rtol=1e-3)
    # The mistake: two shards of norm 0.5 each.
    tensors = np.array([s.values for key, s in own.series.items() if key.startswith("grad_norm/")])
    np.testing.assert_allclose(np.sqrt(np.square(tensors).sum(axis=0)), 0.5 * 2**0.5, rtol=1e-4)


VERIFY = ("-m", "gradclip_cli", "verify", "--format", "json", "main.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    "launcher, args, wanted",
    [
        (TORCHRUN, ("ddp-one-rank",), ["GC411"]),
        ((), ("right-fsdp2", "fork"), []),
        ((), ("fsdp2-own-shard", "spawn"), ["GC411"]),
    ],
    ids=["torchrun", "fork", "spawn"],
)
def test_however_the_ranks_are_started(launcher: Sequence[str], args: Sequence[str], wanted: list[str], tmp_path: Path) -> None:
    write(tmp_path, "main.py", RANKS)
    done = started(tmp_path, sys.executable, *launcher, *VERIFY, *args, TMPDIR=str(tmp_path))
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"]) == ((1, "fail") if wanted else (0, "pass"))
    assert (told["target"]["world_size"], told["updates"]) == (2, 4)
    assert [f["rule"] for f in told["findings"]] == wanted
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("gradclip-")], "the recording is gone"
