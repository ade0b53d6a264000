"""`gradclip record` runs a script as `python` does, and keeps what it saw however the script ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradclip_cli.model.recorded import RankPart
from gradclip_cli.runfile import read_recorded
from tests import recorded_cases
from tests.forks import Done, Zygote
from tests.record_runs import ENV, write

RECORD = [sys.executable, "-m", "gradclip_cli", "record", "-o", "run"]

LOOP = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

def update(n=1):
    for _ in range(n):
        loss = net(torch.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def recorded(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RECORD, *command], cwd=folder, env=ENV, capture_output=True, text=True, timeout=120, **options)


def part_of(folder: Path, rank: int = 0) -> RankPart:
    return read_recorded(folder / "run")[0].parts[rank]


def without_ours(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if not line.startswith(("gradclip: ", "see them with: gradclip"))]


# As under python: the same script run by both, and every word compared ------------------------------------------------

SAME: dict[str, tuple[dict[str, str], Sequence[str], str]] = {
    "the main module": (
        {
            "sub/main.py": """
            import os, pickle, sys
            print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__, type(__loader__).__name__, __doc__)
            print(sorted(globals()), sys.modules["__main__"].__dict__ is globals(), os.getcwd())
            class Thing:
                pass
            print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, Thing.__module__)
            import beside
            if __name__ == "__main__":
                print("main", beside.VALUE)
            """,
            "sub/beside.py": "VALUE = 7",
            "beside.py": "VALUE = 'of the wrong folder'",
        },
        ["sub/main.py", "--lr", "0.1", "-m", "--", "-o", "x", "--help"],
        "",
    ),
    "a module with relative imports": (
        {
            "pkg/__init__.py": "print('package', __name__)",
            "pkg/run/__init__.py": "",
            "pkg/run/train.py": """
            import sys
            from ..parts import VALUE
            from . import here
            print(sys.argv[1:], sys.path[0], __name__, __package__, __spec__.name, VALUE, here.NAME)
            raise ValueError(VALUE)
            """,
            "pkg/run/here.py": "NAME = __name__",
            "pkg/parts.py": "VALUE = 3",
        },
        ["-m", "pkg.run.train", "--epochs", "3"],
        "",
    ),
    "a module that is not there": ({}, ["-m", "no_such_module_at_all"], ""),
    "a folder with a main module": ({"app/__main__.py": "import sys, part\nprint(sys.argv, sys.path[0], part.X)", "app/part.py": "X = 1"}, ["app", "a"], ""),
    "modules called as ours": ({"a/main.py": "import typer, click\nprint(typer.X, click.X)", "a/typer.py": "X = 1", "a/click.py": "X = 2"}, ["a/main.py"], ""),
    "argparse": (
        {"main.py": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, required=True)\nprint(p.parse_args())"},
        ["main.py", "--learning", "1"],
        "",
    ),
    "standard input": ({"main.py": "import sys\nprint(input('? '), sys.stdin.read().upper())"}, ["main.py"], "first\nrest\nof it"),
    "a crash": (
        {"main.py": "def f(x):\n    return 1 / x\n\ntry:\n    f(0)\nexcept ZeroDivisionError as e:\n    print('out', flush=True)\n    raise KeyError('k') from e\n"},
        ["main.py"],
        "",
    ),
    "a syntax error": ({"main.py": "print('x')\nif True print('y')\n"}, ["main.py"], ""),
    "an encoding of its own": ({"main.py": "# -*- coding: latin-1 -*-\nprint(ascii('\\u00e9'), __file__[-7:])"}, ["main.py"], ""),
    "exit 3": ({"main.py": "import sys\nsys.exit(3)"}, ["main.py"], ""),
    "exit with a text": ({"main.py": "import sys\nsys.exit('no data')"}, ["main.py"], ""),
    "exit 300": ({"main.py": "raise SystemExit(300)"}, ["main.py"], ""),
    "an exception hook": ({"main.py": "import sys\nsys.excepthook = lambda kind, e, tb: print('hook', kind, tb.tb_frame.f_code.co_name)\n1 / 0"}, ["main.py"], ""),
    "a broken exception hook": ({"main.py": "import sys\nsys.excepthook = lambda: None\n1 / 0"}, ["main.py"], ""),
    "an error within torch, in a call and in a model": (
        {
            "main.py": """
            import torch
            net = torch.nn.Linear(2, 1)
            net(torch.ones(1, 2)).sum().backward()
            net.weight.grad.fill_(float("nan"))
            try:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
            except RuntimeError as e:
                try:
                    net(torch.ones(1, 3))
                except RuntimeError as mat:
                    raise ValueError(3) from mat
            """
        },
        ["main.py"],
        "",
    ),
    "what runs at the end": (
        {
            "main.py": """
            import atexit, threading, time
            atexit.register(print, "exit handler", flush=True)
            threading.Thread(target=lambda: (time.sleep(0.2), print("thread", flush=True))).start()
            print("main over", flush=True)
            raise RuntimeError("end")
            """
        },
        ["main.py"],
        "",
    ),
    "os._exit": ({"main.py": "import os, atexit\natexit.register(print, 'never')\nprint('x', flush=True)\nos._exit(5)"}, ["main.py"], ""),
    "interrupted": (
        {"main.py": "import atexit, os, signal, time\natexit.register(print, 'exit handler')\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)"},
        ["main.py"],
        "",
    ),
    "interrupted as a module": ({"main.py": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)"}, ["-m", "main"], ""),
    "its own handlers": (
        {
            "main.py": """
            import os, signal, sys
            print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE))
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
            signal.signal(signal.SIGINT, lambda *_: print("asked to stop"))
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            """
        },
        ["main.py"],
        "",
    ),
    "terminated": ({"main.py": "import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGTERM)"}, ["main.py"], ""),
    "forked and spawned children": (
        {
            "main.py": """
            import multiprocessing as mp, os, sys
            class Job:
                def __init__(self, n): self.n = n
            def work(job, queue): queue.put((job.n, __name__, sys.argv[1:]))
            if __name__ == "__main__":
                pid = os.fork()
                if pid == 0:
                    print("child", flush=True)
                    sys.exit(4)
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
                for way in ("fork", "spawn"):
                    context = mp.get_context(way)
                    queue = context.Queue()
                    child = context.Process(target=work, args=(Job(3), queue))
                    child.start()
                    print(way, queue.get())
                    child.join()
            """
        },
        ["main.py", "--x"],
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_as_under_python(name: str, tmp_path: Path) -> None:
    files, command, stdin = SAME[name]
    for file, code in files.items():
        write(tmp_path, file, code)
    options: dict[str, Any] = {"cwd": tmp_path, "env": ENV, "capture_output": True, "text": True, "input": stdin, "timeout": 60}
    plain = subprocess.run([sys.executable, *command], **options)
    watched = subprocess.run([*RECORD, *command], **options)
    assert watched.stdout == plain.stdout
    assert without_ours(watched.stderr) == plain.stderr.splitlines()
    assert watched.returncode == plain.returncode
    assert not (tmp_path / "run").exists(), "a script that trains nothing leaves nothing"


def test_interpreter_options_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "import sys\nprint(sys.flags.optimize, sys.warnoptions, sys._xoptions)\nassert False")
    options = ["-O", "-W", "error", "-X", "dev"]
    plain = subprocess.run([sys.executable, *options, "main.py"], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    watched = subprocess.run([sys.executable, *options, *RECORD[1:], "main.py"], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert (watched.stdout, watched.returncode) == (plain.stdout, plain.returncode) == (plain.stdout, 0)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    done = recorded(tmp_path, "missing.py")
    assert done.returncode == 2
    assert done.stderr.startswith("gradclip: error: missing.py: no such file\nhint:")
    assert recorded(tmp_path, "--save-grads", "sometimes", "missing.py").returncode == 2


Forked = Callable[..., Done]


@pytest.fixture
def forked(zygote: Zygote) -> Forked:
    """Run `main.py` of a folder recorded, in a process forked from one that has torch loaded."""

    def run(folder: Path, code: str, *, most_bytes: int = 0, **watch: Any) -> Done:
        write(folder, "main.py", LOOP + code)
        return zygote("recording", "main.py", cwd=folder, most_bytes=most_bytes, **watch)

    return run


# What was seen is kept ------------------------------------------------------------------------------------------------

ENDS = {
    "to its end": ("update(5)", 0, "finished"),
    "a crash": ("update(5)\nraise RuntimeError('out of\\nmemory')", 1, "RuntimeError: out of"),
    "a crash within the step": (
        "update(4)\noptimizer.register_step_post_hook(lambda *_: 1 / 0)\nupdate()",
        1,
        "ZeroDivisionError: division by zero",
    ),
    "exit 3": ("import sys\nupdate(5)\nsys.exit(3)", 3, "exit 3"),
    "os._exit": ("import os\nupdate(5)\nos._exit(5)", 5, "exit 5"),
    "Ctrl-C": ("import os, signal, time\nupdate(5)\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)", -signal.SIGINT, "interrupted"),
    "a thread that goes on": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), update(5))).start()",
        0,
        "finished",
    ),
    "an exit handler that trains": ("import atexit\natexit.register(update, 5)", 0, "finished"),
    "a forked child": (
        "import os\nupdate(3)\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\nupdate(2)",
        0,
        "finished",
    ),
    "a worker of a data loader": (
        "update(3)\nlist(torch.utils.data.DataLoader([1, 2, 3], num_workers=1, multiprocessing_context='fork'))\nupdate(2)",
        0,
        "finished",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_was_recorded_is_kept(name: str, tmp_path: Path, forked: Forked) -> None:
    code, status, ended = ENDS[name]
    done = forked(tmp_path, code)
    assert done.returncode == status, done.stderr
    part = part_of(tmp_path)
    assert part.ended == ended
    assert part.steps.tolist() == [1, 2, 3, 4, 5]
    assert len(read_recorded(tmp_path / "run")[0].parts) == 1
    # The gradient of mean((w.x + b)^2) at w, b, by hand.
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    w, b = net.weight.detach().double().numpy().ravel(), net.bias.detach().double().numpy()
    for i in range(5):
        out = w.sum() + b[0]
        assert part.columns["loss"][i] == pytest.approx(out**2, rel=1e-5)
        assert part.columns["grad_norm_used"][i] == pytest.approx(abs(2 * out) * np.sqrt(5), rel=1e-5)
        w, b = w - 0.01 * 2 * out, b - 0.01 * 2 * out
    assert ("gradclip: 5 updates recorded" in done.stderr) is (name != "a crash within the step")


def test_killed(tmp_path: Path) -> None:
    write(tmp_path, "main.py", LOOP + "update(250)\nprint('ready', flush=True)\nimport time\ntime.sleep(60)")
    child = subprocess.Popen([*RECORD, "main.py"], cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "ready\n"
        assert part_of(tmp_path).ended == "still running"
        child.kill()
        child.wait()
    recorded_run, damage = read_recorded(tmp_path / "run")
    assert len(recorded_run.parts[0].steps) in (200, *range(200, 251))
    assert "killed" in damage[0].what


def test_a_full_disk(tmp_path: Path, forked: Forked) -> None:
    code = "update(700)\nprint('trained', net.weight.sum().item())"
    (tmp_path / "free").mkdir()
    free = forked(tmp_path / "free", code)
    full = forked(tmp_path, code, most_bytes=12_000)
    assert full.returncode == 0
    assert full.stdout == free.stdout
    assert full.stderr.count("recording stopped") == 1
    assert f"updates ({tmp_path}/run: File too large); the training goes on" in full.stderr
    part = part_of(tmp_path)
    assert 20 <= len(part.steps) < 700
    assert f"gradclip: {len(part.steps)} updates recorded before that\nsee with: gradclip analyze" in full.stderr
    assert part.ended == "finished"
    assert "File too large" in part.header["fault"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_may_not_be_written(tmp_path: Path, forked: Forked) -> None:
    (tmp_path / "closed").mkdir(0o500)
    done = forked(tmp_path, "update(3)\nprint('trained')", directory="closed/run")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("recording stopped") == 1


def test_a_file_in_the_place_of_the_directory(tmp_path: Path, forked: Forked) -> None:
    (tmp_path / "file").write_text("x")
    done = forked(tmp_path, "update(3)\nprint('trained')", directory="file/run")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("recording stopped") == 1


def test_max_steps_ends_the_script_cleanly(tmp_path: Path, forked: Forked) -> None:
    done = forked(tmp_path, "try:\n    update(50)\nfinally:\n    print('tidied up')\nprint('never')", max_updates=4)
    assert (done.returncode, done.stdout) == (0, "tidied up\n")
    part = part_of(tmp_path)
    assert part.steps.tolist() == [1, 2, 3, 4]
    assert part.ended == "stopped after 4 updates"


def test_a_name_of_its_own_and_what_to_do_next(tmp_path: Path) -> None:
    write(tmp_path, "sub/train.py", LOOP + "import sys\nupdate(int(sys.argv[2]))\nprint('ran')")
    command = [sys.executable, "-m", "gradclip_cli", "record", "sub/train.py", "--steps", "20"]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"train-{time.strftime('%Y')}")
    assert done.stderr.splitlines() == ["gradclip: 20 updates recorded", f"see them with: gradclip analyze runs/{run.name}"]
    assert len(read_recorded(run)[0].parts[0].steps) == 20


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "print('ran')")
    recorded_cases.write(tmp_path / "run")
    refused = recorded(tmp_path, "main.py", "3")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "already holds a recorded run" in refused.stderr
    assert "--force" in refused.stderr
    assert recorded(tmp_path, "--force", "main.py", "3").stdout == "ran\n"
    assert not (tmp_path / "run/rank-00000").exists()


def test_a_rank_that_is_left_over_in_the_environment_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "print('ran')")
    recorded_cases.write(tmp_path / "run")
    command = [sys.executable, "-m", "gradclip_cli", "record", "-o", "run", "main.py"]
    refused = subprocess.run(command, cwd=tmp_path, env=ENV | {"RANK": "1"}, capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "already holds a recorded run (rank 0)" in refused.stderr


def test_the_script_decides_before_torch_is_there(tmp_path: Path) -> None:
    code = """
    import sys
    early = [m for m in ("torch", "numpy", "typer", "gradclip_cli.runfile") if m in sys.modules]
    import torch
    print(early, type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__, [f for f in sys.meta_path if "gradclip" in type(f).__module__])
    """
    write(tmp_path, "main.py", code)
    assert recorded(tmp_path, "main.py").stdout == "[] SourceFileLoader SourceFileLoader []\n"


def test_output_random_state_and_parameters_are_the_same(tmp_path: Path) -> None:
    code = """
    import random, sys
    import numpy as np
    import torch
    torch.manual_seed(1); random.seed(2); np.random.seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randn(64, 1)), batch_size=4, shuffle=True)
    for epoch in range(3):
        for x, y in data:
            loss = torch.nn.functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        print(epoch, loss.item().hex())
    print([p.detach().numpy().tobytes().hex()[:64] for p in net.parameters()])
    print(torch.rand(1).item(), random.random(), np.random.rand(), torch.get_rng_state().sum().item())
    print(net._forward_pre_hooks, net._forward_hooks, [p._backward_hooks for p in net.parameters()])
    """
    write(tmp_path, "main.py", code)
    plain = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    watched = recorded(tmp_path, "main.py")
    assert plain.returncode == watched.returncode == 0, watched.stderr
    assert watched.stdout == plain.stdout
    assert len(part_of(tmp_path).steps) == 48


@pytest.mark.parametrize("way", ["spawn", "forkserver"])
def test_spawned_children_record_their_ranks(tmp_path: Path, way: str) -> None:
    code = (
        f"""
    WAY = "{way}"
    """
        + """
    import torch, torch.distributed as dist, torch.multiprocessing as mp
    def work(rank, file):
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        torch.manual_seed(0)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(5):
            loss = net(torch.full((2, 4), rank + 1.0)).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        dist.destroy_process_group()
    if __name__ == "__main__":
        import os, sys
        mp.start_processes(work, args=(os.path.abspath("store"),), nprocs=2, start_method=WAY)
    """
    )
    write(tmp_path, "main.py", code)
    done = recorded(tmp_path, "main.py")
    assert done.returncode == 0, done.stderr
    found, damage = read_recorded(tmp_path / "run")
    assert damage == ()
    assert found.world_size == 2
    assert [part.steps.tolist() for part in found.parts.values()] == [[1, 2, 3, 4, 5]] * 2
    a, b = (part.columns for part in found.parts.values())
    np.testing.assert_allclose(a["grad_norm_used"], b["grad_norm_used"], rtol=1e-6)
    assert (a["loss"] < b["loss"]).all()


def test_children_that_begin_at_once_each_have_a_part(tmp_path: Path, forked: Forked) -> None:
    code = """
    import os, time
    from gradclip_cli.watch import processes, watcher
    find = watcher.rank_and_world
    def rank_and_world(*args, **kwargs):
        answer = find(*args, **kwargs)
        time.sleep(0.3)  # longer than any other child takes to come here
        return answer
    watcher.rank_and_world = rank_and_world
    children = []
    for i in range(3):
        pid = os.fork()
        if pid == 0:
            update(i + 1)
            os._exit(0)
        children.append(pid)
    print([os.waitpid(pid, 0)[1] for pid in children])
    """
    done = forked(tmp_path, textwrap.dedent(code))
    assert (done.stdout, done.stderr.count("warning")) == ("[0, 0, 0]\n", 0), done.stderr
    parts = read_recorded(tmp_path / "run")[0].parts
    assert sorted(len(part.steps) for part in parts.values()) == [1, 2, 3]
    assert list(parts) == [0, 1, 2]


HALF_WRITTEN = """
import os, signal
update(5)
write, most = os.write, [10]
def some(fd, data):
    n = write(fd, data[:most[0]])
    if most[0] < 1000:
        os.kill(os.getpid(), signal.{name})
    most[0] = 1 << 20
    return n
os.write = some
update(300)
"""


def test_interrupted_while_a_block_is_written(tmp_path: Path, forked: Forked) -> None:
    done = forked(tmp_path, HALF_WRITTEN.format(name="SIGINT"))
    assert done.returncode == -signal.SIGINT
    assert done.stderr.count("KeyboardInterrupt") == 1
    found, damage = read_recorded(tmp_path / "run")
    steps = found.parts[0].steps.tolist()
    assert (damage, found.parts[0].ended) == ((), "interrupted")
    assert steps == list(range(1, len(steps) + 1))
    assert f"gradclip: {len(steps)} updates recorded" in done.stderr
    assert 5 < len(steps) < 305


def test_a_handler_that_leaves_while_a_block_is_written(tmp_path: Path, forked: Forked) -> None:
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\n" + HALF_WRITTEN.format(name="SIGTERM")
    done = forked(tmp_path, code)
    assert done.returncode == 4, done.stderr
    found, damage = read_recorded(tmp_path / "run")
    steps = found.parts[0].steps.tolist()
    assert (damage, found.parts[0].ended) == ((), "exit 4")
    assert steps == list(range(1, len(steps) + 1))
    assert f"gradclip: {len(steps)} updates recorded" in done.stderr


def test_terminated_it_has_lost_the_last_moments_at_most(tmp_path: Path, forked: Forked) -> None:
    code = """
    import os, signal, time
    for i in range(60):
        update()
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    """
    done = forked(tmp_path, textwrap.dedent(code))
    assert done.returncode == -signal.SIGTERM
    # Two seconds of them, and a machine that is busy.
    assert len(part_of(tmp_path).steps) >= 60 - 45
