"""The shape of the package: who may import whom, and what a light start may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "gradclip_cli"

# Layer -> what it may import of the package. `analysis` puts detection and rules together; only the command line knows all.
_BASE = {"errors", "model", "wording"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors", "model"},
    "wording": set(),
    "launch_environment": {"errors"},
    "readers": _BASE | {"readers", "runfile"},
    "detect": _BASE | {"detect"},
    "rules": _BASE | {"detect", "rules"},
    "threshold": _BASE | {"detect", "threshold"},
    "policy": _BASE | {"policy"},
    "report": _BASE | {"report", "__init__"},
    "analysis": _BASE | {"detect", "rules"},
    "runfile": _BASE | {"runfile", "__init__"},
    # The torch side; only the command line knows of it.
    "clipping": _BASE | {"clipping"},
    "watch": _BASE | {"watch", "runfile", "launch_environment", "__init__"},
    "verify": _BASE | {"verify", "clipping"},
    "probe": _BASE | {"probe", "watch", "runfile", "clipping", "__init__"},
    "cli": {"*"},
    "__init__": _BASE | {"readers", "analysis", "threshold", "watch"},
    "interrupt": set(),
    "__main__": {"errors", "cli", "interrupt"},
}


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(path: Path) -> set[str]:
    """Layers a file imports, anywhere in it."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "gradclip_cli" else [node.module]
        out |= {
            layer_of(n) if (PACKAGE / layer_of(n)).exists() or (PACKAGE / f"{layer_of(n)}.py").exists() else "__init__"
            for n in names
            if n.split(".")[0] == "gradclip_cli"
        }
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
    return out


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert first in ALLOWED, f"{path}: name its layer in ALLOWED"
    assert ALLOWED[first] == {"*"} or imports_of(path) <= ALLOWED[first]


HEAVY = ("torch", "matplotlib", "tensorboard", "pandas", "pyarrow", "polars", "scipy", "wandb")


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["analyze", "--help"],
        ["explain"],
        ["explain", "GC101"],
        ["analyze", "run.csv"],
        ["analyze", "run.csv", "--format", "json"],
        ["check", "run.csv"],
        ["check", "--show-policy"],
        ["analyze", "run.csv", "--max-norm", "1"],
        ["suggest-threshold", "run.csv"],
        ["suggest-threshold", "run.csv", "--format", "value"],
    ],
    ids=" ".join,
)
def test_a_light_start_loads_nothing_heavy(args: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("step,loss,grad_norm\n" + "".join(f"{i},{3 - i / 100},{1 + i % 7 / 10}\n" for i in range(100)))
    code = (
        "import sys; from gradclip_cli.__main__ import main\n"
        f"code = main({args!r})\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_a_recording_starts_without_torch(tmp_path: Path) -> None:
    """Which the script then loads: what its process was before is gone by then, and the time with it."""
    code = (
        "import os, sys; from gradclip_cli.__main__ import main\n"
        "os.execv = lambda *_: sys.exit(print('torch' in sys.modules))\n"
        "main(['record', '-o', 'run', 'train.py'])"
    )
    (tmp_path / "train.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_help_does_not_even_load_numpy(tmp_path: Path) -> None:
    code = "import sys; from gradclip_cli.__main__ import main; main(['--help']); sys.exit('numpy' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}, timeout=60
        ).returncode
        == 0
    )


def test_only_the_command_that_was_asked_for_is_imported(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(50)))
    code = (
        "import sys; from gradclip_cli.__main__ import main; from gradclip_cli.cli import COMMANDS; main(['analyze', 'run.csv'])\n"
        "places = {place.split(':')[0] for name, place, _ in COMMANDS if name != 'analyze'}\n"
        "sys.exit(', '.join(places & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
