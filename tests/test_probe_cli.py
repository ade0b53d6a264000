"""`gradclip probe` as people call it: its exit statuses, its formats, other people's models, an interrupt, several ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradclip_cli.probe.faults import KINDS
from gradclip_cli.runfile import read_recorded
from tests.conftest import ROOT

torch = pytest.importorskip("torch")

Call = Callable[..., subprocess.CompletedProcess[str]]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

MINE = """
import torch
from torch import nn

def parts():
    chance = torch.Generator().manual_seed(1)
    data = [(torch.randn(16, 8, generator=chance), torch.randint(0, 3, (16,), generator=chance)) for _ in range(10)]
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), data

def criterion():
    return *parts(), nn.CrossEntropyLoss()

def function():
    return *parts(), lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])

def optimizer():
    print("not the result")
    model, data = parts()
    return model, data, torch.optim.SGD(model.parameters(), lr=0.125), nn.CrossEntropyLoss()

def once():
    model, data = parts()
    return model, iter(data), nn.CrossEntropyLoss()

def raises():
    return *parts(), lambda model, batch: undefined

def no_scalar():
    return *parts(), lambda model, batch: model(batch[0])

def nothing():
    pass

def no_model():
    return "model", [1, 2]

def no_batches():
    return parts()[0], 7

def frozen():
    model, data = parts()
    return model.requires_grad_(False), data

def twice():
    return *parts(), nn.CrossEntropyLoss(), nn.MSELoss()

def lazy():
    return nn.LazyLinear(3), parts()[1]

def closure():
    model, data = parts()
    return model, data, nn.CrossEntropyLoss(), torch.optim.LBFGS(model.parameters())

def broken():
    1 / 0
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def told(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["schema"] == "gradclip.probe/1"
    return document


def test_faults_are_listed_without_torch(gradclip: Call) -> None:
    done = gradclip("probe", "--list-faults", code=0)
    assert [line.split("@")[0] for line in done.stdout.splitlines() if "@STEP" in line and not line.startswith(" ")] == list(KINDS)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--inject", "mislabelled"], "expected KIND@STEP"),
        (["--inject", "lr-jump@3", "--inject", "lr-jump@3:2"], "there is a lr-jump at that update already"),
        (["--max-norm", "0"], "--max-norm '0': expected a finite number above 0 or none"),
        (["--max-norm", "suggested"], "--max-norm 'suggested'"),
        (["--compare", "max_norm=1"], "2 to 6 values"),
        (["--compare", "lr=1,2"], "expected max_norm="),
        (["--compare", "max_norm=1,x"], "--compare max_norm 'x'"),
        (["--compare", "max_norm=suggested,1"], "the first cannot be `suggested`"),
        (["--compare", "max_norm=1,1"], "twice"),
        (["--compare", "max_norm=1,2", "--max-norm", "1"], "expected one of them"),
        (["--lr", "nan"], "--lr is nan"),
        (["--preset", "tiny", "mine:build"], "expected one of MODULE:FUNCTION, --preset and --model"),
        (["--model", "hf:there"], "--model and --text belong together"),
        (["--model", "there", "--text", "a.txt"], "expected hf: and a directory"),
        (["--plot", "a.pdf"], "expected .png or .svg"),
        (["--steps", "0"], "steps"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_command_line(warm: Call, args: list[str], said: str) -> None:
    done = warm("probe", *args, code=2)
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("once", "gave no more batches at update 11"),
        ("raises", "raised NameError (name 'undefined' is not defined) while computing the loss, at "),
        ("no_scalar", "the loss is a tensor of shape (16, 3); expected a scalar tensor"),
        ("nothing", "returned a NoneType; expected a model and an iterable of batches"),
        ("no_model", "the first value it returned is a str; expected a torch.nn.Module"),
        ("no_batches", "the second value it returned is a int; expected an iterable of batches"),
        ("twice", "returned a MSELoss behind model and batches; expected one loss function"),
        ("lazy", "parameters that have no shape yet"),
        ("closure", "raised TypeError (LBFGS.step() missing 1 required positional argument: 'closure') while making update 1"),
        ("frozen", "no parameter that is trained"),
        ("broken", "raised ZeroDivisionError (division by zero) while it built, at "),
        ("absent", "the module has no function absent"),
    ],
)
def test_a_function_that_gives_something_else(mine: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str) -> None:
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.probe.conditions import Conditions
    from gradclip_cli.probe.own import own_subject
    from gradclip_cli.probe.run import run_probe

    monkeypatch.syspath_prepend(mine)
    monkeypatch.chdir(mine)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(GradclipError, match=re.escape(said)) as caught:
        run_probe(lambda: own_subject(f"mine:{function}"), Conditions(torch.device("cpu"), 40, 1.0), (), mine / "run")
    assert caught.value.code == 3


def test_a_module_that_is_not_there(warm: Call) -> None:
    assert "there is no module nowhere" in warm("probe", "nowhere.train:build", code=3).stderr


def test_ones_own_model(gradclip: Call, warm: Call, mine: Path) -> None:
    """Twelve updates over ten batches: the list is gone through again."""
    document = told(gradclip("probe", "mine:optimizer", "--steps", 12, "-o", "run", "--format", "json", env=ONE_THREAD, code=0))
    assert document["subject"] == "mine:optimizer"
    assert document["num_parameters"] == 8 * 16 + 16 + 16 * 3 + 3
    assert (document["conditions"]["optimizer"], document["conditions"]["lr"]) == ("SGD", 0.125)
    done = warm("probe", "mine:optimizer", "--lr", 0.1, "-o", "other", env=ONE_THREAD, code=2)
    assert "made its own optimizer" in done.stderr
    assert "nothing is overwritten" in warm("probe", "mine:function", "-o", "run", env=ONE_THREAD, code=3).stderr


def test_twins_side_by_side(warm: Call, mine: Path) -> None:
    args = ("probe", "mine:criterion", "--optimizer", "sgd", "--lr", 0.3, "--steps", 60, "--inject", "loss-times@45:1000")
    args = (*args, "--compare", "max_norm=none,suggested", "-o", "run", "--plot", "twins.png")
    done = warm(*args, env=ONE_THREAD, code=0)
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    assert "planted  loss-times@45:1000" in done.stdout
    assert "acted on" in done.stdout
    assert re.search(r"^suggested: \d+\.\d+ +\S", done.stdout, re.M), done.stdout
    assert (mine / "twins.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (mine / "run").iterdir()) == ["max_norm-none", "max_norm-suggested"]
    again = warm(*args, "--force", "--format", "json", env=ONE_THREAD, code=0)
    first, second = told(again)["twins"]
    assert (first["max_norm"], first["label"], second["label"]) == (None, "none", "suggested")
    assert second["num_clipped"] < 5
    suggested = warm("suggest-threshold", "run/max_norm-none", "--format", "value", code=0)
    assert second["max_norm"] == float(suggested.stdout)
    assert first["sightings"][0]["found"][0] == {"rule": "GC101", "first_step": 45}


def test_no_number_for_the_suggested_twin(warm: Call, mine: Path) -> None:
    args = ("probe", "mine:function", "--steps", 12, "--compare", "max_norm=none,suggested", "-o", "run", "--format", "markdown")
    done = warm(*args, env=ONE_THREAD, code=3)
    assert done.stdout.startswith("### Probe: `run`")
    assert "no twin at the suggested threshold" in done.stdout


def test_an_interrupt_keeps_what_was_recorded(mine: Path) -> None:
    command = [sys.executable, "-m", "gradclip_cli", "probe", "mine:function", "--steps", "1000000", "-o", "run"]
    process = subprocess.Popen(
        command,
        cwd=mine,
        env=os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 90
    while not (mine / "run" / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    count = re.search(r"gradclip: ([\d,]+) of 1,000,000 updates recorded\nsee them with: gradclip analyze run\n", err)
    assert count is not None, err
    recorded, damage = read_recorded(mine / "run")
    assert damage == ()
    assert recorded.parts[0].ended == "interrupted"
    assert abs(len(recorded.parts[0].steps) - int(count[1].replace(",", ""))) <= 1


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_two_ranks(tmp_path: Path, warm: Call, how: str) -> None:
    args = ["probe", "-o", "run", "--steps", "12", "--parallel", how, "--inject", "nan-input@5", "--format", "json"]
    if how == "ddp":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gradclip_cli", *args]
        env = os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    else:
        done = warm(*args, ranks=2)
    assert done.returncode == 0, done.stderr
    document = told(done)
    assert document["conditions"]["world_size"] == 2
    recorded, _ = read_recorded(tmp_path / "run")
    assert [len(recorded.parts[rank].steps) for rank in (0, 1)] == [12, 12]
    (twin,) = document["twins"]
    assert twin["num_dropped"] == 1
    assert not [f for f in twin["findings"] if f["rule"].startswith("GC4")]


def test_a_hugging_face_directory(warm: Call, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz .?")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(tmp_path / "model")
    config = transformers.GPT2Config(vocab_size=len(letters), n_positions=16, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    (tmp_path / "some.txt").write_text("a fox sat by the river and looked at the water. " * 20)
    args = ("probe", "--model", "hf:model", "--text", "some.txt", "--steps", 8, "-o", "run", "--format", "json")
    done = warm(*args, env=ONE_THREAD, code=0)
    assert told(done)["num_parameters"] == sum(p.numel() for p in transformers.GPT2LMHeadModel(config).parameters())
    assert done.stderr == ""
    assert "holds no config.json" in warm("probe", "--model", "hf:.", "--text", "some.txt", code=3).stderr
