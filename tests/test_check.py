"""`gradclip check` as a CI job sees it: exit statuses, configuration, preflight. Real processes throughout."""

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
from xml.etree import ElementTree as ET

import pytest

from gradclip_cli.__main__ import main
from gradclip_cli.cli import preflight as stages
from gradclip_cli.errors import UsageError
from gradclip_cli.policy import Policy
from tests.conftest import ROOT, SAMPLES

Call = Callable[..., "subprocess.CompletedProcess[str]"]


def write_run(path: Path, n: int = 200, *, norm: bool = True, spike: bool = False, scale: float = 1.0) -> Path:
    """A calm run; with a spike, one that came back and that no explosion led: a warning."""
    lines = ["step,loss,grad_norm" if norm else "step,loss,lr"]
    for i in range(n):
        loss = scale * (2 + 2 / (1 + i / 20) + (i * 37 % 11) / 500) + (3 if spike and i in (100, 101) else 0)
        lines.append(f"{i},{loss},{0.5 + (i * 53 % 17) / 100 if norm else 0.001}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory of small runs, one for each way a verdict can go."""
    write_run(tmp_path / "calm.csv")
    write_run(tmp_path / "no-norm.csv", norm=False)
    write_run(tmp_path / "short.csv", 20)
    write_run(tmp_path / "spike.csv", spike=True)
    write_run(tmp_path / "worse.csv", scale=1.25)
    (tmp_path / "odd.csv").write_text(write_run(tmp_path / "x.csv").read_text().replace("loss,grad_norm", "objective,size"))
    (tmp_path / "calm.csv.json").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([SAMPLES / "stable"], 0),
        ([SAMPLES / "diverged.jsonl"], 1),
        ([SAMPLES / "spike-recovered.csv"], 1),
        ([SAMPLES / "nonfinite.log"], 1),
        ([SAMPLES], 1),
        (["calm.csv"], 0),
        (["calm.csv", "calm.csv"], 0),
        (["no-norm.csv"], 3),
        (["no-norm.csv", "--require", "loss"], 0),
        (["no-norm.csv", "calm.csv"], 3),
        (["no-norm.csv", SAMPLES / "diverged.jsonl"], 1),
        (["missing.csv"], 3),
        (["missing.csv", "calm.csv"], 3),
        (["missing.csv", SAMPLES / "diverged.jsonl"], 1),
        (["missing.csv", "--strict"], 3),
        (["short.csv"], 3),
        (["spike.csv"], 0),
        (["spike.csv", "--fail-on", "warning"], 1),
        (["spike.csv", "--select", "GC102"], 1),
        (["spike.csv", "--select", "GC1"], 0),
        (["spike.csv", "--fail-on", "warning", "--ignore", "loss-spike"], 0),
        ([SAMPLES / "diverged.jsonl", "--ignore", "GC101,GC103"], 0),
        ([SAMPLES / "diverged.jsonl", "--ignore", "GC101"], 1),
        (["calm.csv", "--strict"], 1),
        (["calm.csv", "--strict", "--select", "GC101,GC102,GC103,GC3"], 0),
        (["calm.csv", "--max-clipped-fraction", "0.5"], 3),
        (["calm.csv", "--max-clipped-fraction", "0.5", "--max-norm", "0.6"], 0),
        (["calm.csv", "--max-clipped-fraction", "0.1", "--max-norm", "0.6"], 1),
        (["calm.csv", "--min-steps", "201"], 3),
        (["calm.csv", "--baseline", "calm.csv"], 0),
        (["worse.csv", "--baseline", "calm.csv"], 1),
        (["worse.csv", "--baseline", "calm.csv", "--tolerance", "0.3"], 0),
        (["calm.csv", "--baseline", "missing.csv"], 3),
        ([SAMPLES / "diverged.jsonl", "--baseline", "missing.csv"], 1),
        (["calm.csv", "--baseline", SAMPLES], 3),
        (["odd.csv"], 3),
        (["odd.csv", "--loss", "objective", "--grad-norm", "size"], 0),
        ([], 2),
        (["calm.csv", "--tolerance", "-1"], 2),
        (["calm.csv", "--select", "GC9"], 2),
        (["calm.csv", "--fail-on", "info"], 2),
        (["calm.csv", "--config", "missing.toml"], 2),
        (["calm.csv", "--report", "x.pdf"], 2),
        (["calm.csv", "--report", "missing/x.xml"], 2),
        (["calm.csv", "--report", "calm.csv.json"], 2),
    ],
    ids=lambda x: " ".join(Path(a).name if isinstance(a, Path) else a for a in x) if isinstance(x, list) else None,
)
def test_exit_status(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[object], code: int
) -> None:
    monkeypatch.chdir(runs)
    assert main(["check", *map(str, args)]) == code
    out, err = capsys.readouterr()
    if code == 2:
        assert out == ""
        assert err.startswith("gradclip: error: ")
        assert len(err.splitlines()) <= 2
    else:
        assert out.splitlines()[-1].endswith(f"exit status {code}")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([SAMPLES / "stable"], 0),
        ([SAMPLES / "diverged.jsonl"], 1),
        (["no-norm.csv"], 3),
        (["missing.csv", SAMPLES / "diverged.jsonl"], 1),
        (["calm.csv", "--select", "GC9"], 2),
    ],
    ids=["pass", "fail", "missing-series", "finding-outweighs", "usage"],
)
def test_exit_status_of_the_process(gradclip: Call, runs: Path, args: list[object], code: int) -> None:
    gradclip("check", *args, code=code)


@pytest.mark.parametrize(("name", "code", "format"), [("stable", 0, "text"), ("diverged.jsonl", 1, "json"), ("missing", 3, "junit")])
def test_a_closed_pipe_does_not_change_the_exit_status(tmp_path: Path, name: str, code: int, format: str) -> None:
    command = (
        f"{sys.executable} -m gradclip_cli check {SAMPLES / name} -f {format} 2>/dev/null | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60)
    assert done.returncode == code


def test_a_file_below_a_directory_that_cannot_be_read_is_no_pass(gradclip: Call, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write_run(tmp_path / "runs" / "a.csv")
    gradclip("check", "runs", code=0)
    (tmp_path / "runs" / "events.out.tfevents.1.host").write_bytes(b"\0" * 40)
    done = gradclip("check", "runs", "--format", "json", code=3)
    assert [s["verdict"] for s in json.loads(done.stdout)["suites"]] == ["pass", "cannot-judge"]


def test_reports_are_written_beside_the_answer_and_once(gradclip: Call, tmp_path: Path) -> None:
    args = ("check", SAMPLES / "diverged.jsonl", "--report", "out.xml", "--report", "out.json", "--report", "out.md", "--format", "github")
    done = gradclip(*args, code=1)
    assert done.stdout.startswith("::error title=GC101")
    assert done.stderr == "wrote out.xml\nwrote out.json\nwrote out.md\n"
    (suite,) = ET.parse(tmp_path / "out.xml").getroot()
    assert suite.get("failures") == "2"
    assert json.loads((tmp_path / "out.json").read_text())["exit_status"] == 1
    assert (tmp_path / "out.md").read_text().startswith("### gradclip check: FAIL")
    assert "--force" in gradclip(*args, code=2).stderr
    gradclip(*args, "--force", code=1)


def test_a_configuration_is_found_and_shown(gradclip: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "spike.csv", spike=True)
    config = tmp_path / "pyproject.toml"
    config.write_text(
        '[project]\nname = "x"\n[tool.gradclip]\nfail-on = "warning"\nruns = ["spike.csv"]\n[tool.gradclip.check]\nmin-steps = 50\n'
    )
    gradclip("check", code=1)
    gradclip("check", "--fail-on", "error", code=0)
    gradclip("check", "--config", os.devnull, "spike.csv", code=0)
    shown = gradclip("check", "--show-policy", "--tolerance", "0.5", code=0).stdout
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.splitlines() if line and not line.startswith((" ", "Count"))}
    assert rows["fail-on"] == ["warning", "pyproject.toml [tool.gradclip]"]
    assert rows["min-steps"] == ["50", "pyproject.toml [tool.gradclip.check]"]
    assert rows["tolerance"] == ["0.5", "command line"]
    assert rows["strict"] == ["false", "default"]
    doc = json.loads(gradclip("check", "--show-policy", "--format", "json", code=0).stdout)
    assert doc["policy"]["runs"] == {"value": ["spike.csv"], "from": "pyproject.toml [tool.gradclip]"}
    assert doc["rules"]["GC102"] == "warning"
    config.write_text('[tool.gradclip]\nfail_on = "warning"\n')
    done = gradclip("check", code=2)
    assert done.stderr == "gradclip: error: pyproject.toml [tool.gradclip]: unknown key 'fail_on'\nhint: did you mean 'fail-on'?\n"


def test_max_norm_of_the_command_line_is_evidence_for_the_rules(gradclip: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "calm.csv")
    done = gradclip("check", "calm.csv", "--max-norm", "0.1", "--fail-on", "warning", code=1)
    assert "GC201 always-clipping" in done.stdout
    assert "100% of the norms exceed max_norm 0.1" in done.stdout


# Preflight. What it runs are commands of gradclip; a stand-in shows that whatever they do is told as it is.

STAND_IN = """#!{python}
import json, os, subprocess, sys, time
launcher, words = sys.argv[1:sys.argv.index("gradclip_cli") + 1], sys.argv[sys.argv.index("gradclip_cli") + 1:]
if launcher != ["-m", "gradclip_cli"] and launcher != ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "gradclip_cli"]:
    sys.exit(f"started as {{launcher}}")
behaviour = words[-1]
print("training says hello")
if behaviour == "crash":
    sys.exit("RuntimeError: no such data")
if behaviour == "usage":
    sys.exit(print("gradclip: error: no such option: --oops\\nhint: see `gradclip record --help`", file=sys.stderr) or 2)
if behaviour == "hang":
    subprocess.Popen(["sleep", "60"])
    time.sleep(60)
if behaviour == "kill":
    os.kill(os.getpid(), 9)
if behaviour == "refuse":
    sys.exit(print("gradclip: error: kept: already holds a recorded run\\nhint: --force", file=sys.stderr) or 3)
if words[0] != "verify":
    target = words[words.index("-o") + 1]
    if behaviour != "nothing":
        os.makedirs(target)
        os.link({run!r}, os.path.join(target, "run.csv"))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[stages.Stage]]:
    """Run stages with a program in gradclip's place that does what its last word says."""
    program = tmp_path / "program"
    program.write_text(STAND_IN.format(python=sys.executable, run=str(write_run(tmp_path / "calm.csv"))))
    program.chmod(0o755)
    monkeypatch.setattr(stages.sys, "executable", str(program))
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(*words: tuple[str, ...], timeout: float = 30.0) -> list[stages.Stage]:
        return list(stages.preflight(Policy(preflight=words, timeout=timeout, folder=tmp_path), scratch))

    return run


def test_what_a_stage_recorded_is_handed_on(stand_in: Callable[..., list[stages.Stage]], tmp_path: Path) -> None:
    first, second = stand_in(("record", "train.py"), ("probe", "-o", "kept", "--steps", "5"))
    assert first.suite.name == "record train.py"
    assert first.suite.judgement == "pass"
    assert first.recorded == tmp_path / "scratch" / "1-record"
    assert second.recorded == tmp_path / "kept"
    assert (tmp_path / "kept" / "run.csv").exists()


def test_ranks_are_started_by_torchrun(stand_in: Callable[..., list[stages.Stage]], tmp_path: Path) -> None:
    (stage,) = stand_in(("torchrun", "--nproc-per-node", "2", "-m", "gradclip_cli", "record", "train.py"))
    assert stage.suite.name == "torchrun --nproc-per-node 2 -m gradclip_cli record train.py"
    assert (stage.suite.judgement, stage.suite.checks[0].title) == ("pass", "preflight record")
    assert stage.recorded == tmp_path / "scratch" / "1-record"


def test_a_run_that_lay_there_before_is_not_judged(stand_in: Callable[..., list[stages.Stage]], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    write_run(tmp_path / "kept" / "old.csv", norm=False)
    (stage,) = stand_in(("record", "-o", "kept", "refuse"))
    assert stage.recorded is None
    assert stage.suite.checks[0].detail == "ended with status 3: kept: already holds a recorded run"


@pytest.mark.parametrize("option", ["--format", "--format=text", "-f", "-fjunit"])
def test_the_format_of_verify_is_ours(stand_in: Callable[..., list[stages.Stage]], option: str) -> None:
    with pytest.raises(UsageError, match="--format was given"):
        stand_in(("verify", "--max-steps", "3", option, "text", "train.py"))
    (stage,) = stand_in(("verify", "train.py", option, "text"))
    assert stage.suite.checks[0].detail == "left nothing to judge", "the stand-in's answer: the option is the script's"


def test_a_preflight_on_several_ranks_says_what_to_do(gradclip: Call) -> None:
    done = gradclip("check", "--preflight", code=2, env={"RANK": "1", "WORLD_SIZE": "2"})
    assert "started on 2 ranks" in done.stderr
    assert '"torchrun --nproc-per-node 8 -m gradclip_cli record train.py"' in done.stderr
    assert "WORLD_SIZE is 'x'" in gradclip("check", "--preflight", code=2, env={"WORLD_SIZE": "x"}).stderr
    gradclip("check", SAMPLES / "stable", code=0, env={"RANK": "1", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("record", "crash"), "ended with status 1: RuntimeError: no such data"),
        (("record", "nothing"), "left nothing to judge"),
        (("record", "kill"), "was ended by signal 9"),
        (("verify", "crash"), "ended with status 1: RuntimeError: no such data"),
        (("verify", "no-json"), "left nothing to judge"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_a_stage_that_did_not_end_well_is_no_pass(stand_in: Callable[..., list[stages.Stage]], words: tuple[str, ...], says: str) -> None:
    (stage,) = stand_in(words)
    assert stage.recorded is None
    assert stage.suite.judgement == "cannot-judge"
    assert stage.suite.checks[0].detail == says


def test_a_stage_that_hangs_is_ended_with_all_it_started(stand_in: Callable[..., list[stages.Stage]]) -> None:
    began = time.monotonic()
    (stage,) = stand_in(("record", "hang"), timeout=1.0)
    assert time.monotonic() - began < 20
    assert stage.suite.checks[0].detail == "ran into its timeout of 1 s"
    assert stage.suite.judgement == "cannot-judge"


def test_a_command_line_that_its_command_refuses_is_a_bad_configuration(stand_in: Callable[..., list[stages.Stage]]) -> None:
    with pytest.raises(UsageError) as e:
        stand_in(("record", "usage"))
    assert e.value.message == "preflight 'record usage': no such option: --oops"
    assert e.value.hint == "see `gradclip record --help`"


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["record", "-o", "a", "train.py"], "a"),
        (["record", "--max-steps", "5", "--output=a", "train.py", "-o", "b"], "a"),
        (["record", "--max-steps", "5", "train.py", "-o", "b"], None),
        (["record", "-m", "pkg.train", "-o", "b"], None),
        (["record", "-oa", "train"], "a"),
        (["record", "train", "-o", "b"], None),
        (["record", "--force", "--save-grads", "every:5", "train", "-o", "b"], None),
        (["record", "--force", "--save-grads=never", "-o", "a", "train"], "a"),
        (["record", "--", "train", "-o", "b"], None),
        (["record", "-o"], ""),
        (["probe", "--steps", "5", "--output", "c"], "c"),
        (["probe", "pkg:make", "-o", "c"], "c"),
        (["probe"], None),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_where_a_command_line_records_to(words: list[str], place: str | None) -> None:
    assert stages._value(stages._Line("", (), words[0], words[1:]), ("-o", "--output")) == place


def test_what_an_interrupt_leaves_behind(tmp_path: Path) -> None:
    """Nothing: neither the process that was started, which does not listen, nor its scratch directory."""
    pytest.importorskip("torch")
    (tmp_path / "gradclip.toml").write_text('preflight = ["record deaf.py"]\n')
    (tmp_path / "deaf.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    (tmp_path / "tmp").mkdir()
    env = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen([sys.executable, "-m", "gradclip_cli", "check"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    # A cancelled job, and the impatient one who cancels once more.
    process.terminate()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.endswith("gradclip: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert os.listdir(tmp_path / "tmp") == []


DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def test_a_preflight_of_two_ranks(gradclip: Call, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torchrun = "torchrun --nproc-per-node 2 -m gradclip_cli record"
    (tmp_path / "gradclip.toml").write_text(f'preflight = ["{torchrun} --max-steps 40 train.py"]\n')
    train = TRAIN.replace("BOUND", "5.0").replace("model = ", "model = nn.parallel.DistributedDataParallel(").replace(", 1))\n", ", 1)))\n")
    (tmp_path / "train.py").write_text(DDP + train + "dist.destroy_process_group()\n")
    env = {"OMP_NUM_THREADS": "1"}
    (suite,) = json.loads(gradclip("check", "-f", "json", code=0, env=env).stdout)["suites"]
    status = {c["id"]: c["status"] for c in suite["checks"]}
    assert status["preflight"] == "pass" and status["GC411"] == "pass", "both ranks were recorded"
    (tmp_path / "gradclip.toml").write_text(f'preflight = ["{torchrun} missing.py"]\n')
    assert "missing.py: no such file" in gradclip("check", code=2, env=env).stderr


# The README's examples

README = (ROOT / "README.md").read_text(encoding="utf-8")
TRAIN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
weights = torch.randn(16, 1) / 4
for step in range(1000):
    x = torch.randn(64, 16)
    loss = nn.functional.mse_loss(model(x), x @ weights)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), BOUND)
    optimizer.step()
"""


def block(language: str) -> str:
    """The one fenced block of the README's section in this language."""
    section = README[README.index("\n## In CI\n") : README.index("\n## Exit codes\n")]
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, flags=re.S)
    return found


def shell(tmp_path: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script with `gradclip` and `srun` on its path."""
    bin = tmp_path / "bin"
    bin.mkdir(exist_ok=True)
    gradclip = f'#!/bin/sh\nexec {sys.executable} -m gradclip_cli "$@"\n'
    srun = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
    for name, text in (("gradclip", gradclip), ("srun", srun)):
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    full = {"PATH": f"{bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=os.environ | full, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(("bound", "code", "words"), [("5.0", 0, "gradclip: pass"), ("1e-4", 1, "max-clipped-fraction")])
def test_the_workflow_of_the_readme(tmp_path: Path, bound: str, code: int, words: str) -> None:
    pytest.importorskip("torch")
    config = block("toml")
    if code:
        # The battery is the same for both.
        config = config.replace('"verify", ', "")
    (tmp_path / "pyproject.toml").write_text(config)
    (tmp_path / "train.py").write_text(TRAIN.replace("BOUND", bound))
    install, check, summary = re.findall(r"run: (.*)", block("yaml"))
    assert install == "pip install 'gradclip-cli[torch]'"
    done = shell(tmp_path, check)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert words in done.stdout
    suites = list(ET.parse(tmp_path / "gradclip.xml").getroot())
    assert [s.get("name") for s in suites][-1] == "record --max-steps 100 train.py"
    assert {c.get("name") for c in suites[-1].iter("testcase")} >= {"GC103 diverged", "GC403 clip-before-backward", "require loss"}
    assert shell(tmp_path, summary, GITHUB_STEP_SUMMARY="summary").returncode == 0
    assert (tmp_path / "summary").read_text().startswith(f"### gradclip check: {'FAIL' if code else 'PASS'}")


@pytest.mark.parametrize(("run", "code"), [("stable", 0), ("diverged.jsonl", 1), ("missing", 3)])
def test_the_job_of_the_readme_starts_only_what_is_clean(tmp_path: Path, run: str, code: int) -> None:
    script = block("bash").replace("--preflight", str(SAMPLES / run)).replace("srun python train.py", "srun touch started")
    done = shell(tmp_path, script, SLURM_JOB_ID="7")
    assert done.returncode == code, done.stderr
    assert (tmp_path / "started").exists() is (code == 0)
    assert (tmp_path / "preflight-7.md").exists()


def test_without_torch_a_preflight_says_how_to_get_it(gradclip: Call, tmp_path: Path) -> None:
    (tmp_path / "gradclip.toml").write_text('preflight = ["record train.py"]\n')
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
    )
    done = gradclip("check", "--format", "json", code=3, env={"PYTHONPATH": f"{tmp_path / 'hide'}:{ROOT}"})
    (suite,) = json.loads(done.stdout)["suites"]
    assert "PyTorch is not installed here" in suite["checks"][0]["detail"]
