"""`gradclip verify`: does clipping really take effect, in a script's loop or on this device?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from gradclip_cli.cli.record import named_path

if TYPE_CHECKING:
    from gradclip_cli.model.check import Verification
    from gradclip_cli.verify import Battery, Options

Format = Literal["text", "json", "markdown", "junit", "github"]
_FORMATS = get_args(Format)
_MAX_NORM = 1.0
_ELEMENTS = 10_000_000
_TIMEOUT_S = 60.0


def verify(
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCRIPT]", help="A Python script, or with -m the name of a module, to run and to judge.", show_default=False
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="What the script is given, options included.", show_default=False)
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the result.")] = "text",
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, also on a terminal.")] = False,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in python -m.")] = False,
    max_steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="SCRIPT: end it after N optimizer updates [default: 100].", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="RUN", parser=named_path, help="SCRIPT: keep what was recorded there.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="SCRIPT: let -o replace a recorded run.")] = False,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Battery: auto, cpu, cuda, cuda:1, mps [default: auto].", show_default=False)
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DTYPE,...", help="Battery: float32, bfloat16, float16, float64 [default: all there are].", show_default=False
        ),
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Battery: start N ranks here [default: 1].", show_default=False)
    ] = None,
    max_norm: Annotated[float | None, typer.Option(metavar="M", help="Battery: the bound [default: 1.0].", show_default=False)] = None,
    elements: Annotated[
        int | None,
        typer.Option(metavar="N", min=1000, help="Battery: size of the largest tensor to try [default: 10000000].", show_default=False),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Battery: longest wait for ranks, per check [default: 60].", show_default=False)
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(metavar="CHECK,...", help="Battery: ids, families (B6), names or rules.", show_default=False)
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="Battery: list its checks and end.")] = False,
) -> int:
    """Prove clipping: with SCRIPT in that training loop, without it on this device.

    With SCRIPT, the script runs under watch for some updates, and what its clipping did is judged. Without it, a battery of checks
    compares clipping on this device, dtype by dtype and over several ranks, with a float64 reference. Under torchrun
    (`torchrun --nproc-per-node 8 -m gradclip_cli verify`) the battery uses the ranks that are there.

    Exit status: 0 judged and clean; 1 a check failed; 2 bad command line; 3 nothing could be judged, or there is no such device.
    """
    from gradclip_cli.cli.record import check_torch
    from gradclip_cli.errors import UsageError

    battery = {
        "--device": device,
        "--dtype": dtype,
        "--world-size": world_size,
        "--max-norm": max_norm,
        "--elements": elements,
        "--timeout": timeout,
        "--select": select,
        "--list": list_checks or None,
    }
    loop = {"-m": module or None, "--max-steps": max_steps, "--output": output, "--force": force or None}
    if script is None:
        _refuse(loop, "needs a SCRIPT")
    else:
        _refuse(battery, "is for the battery, which runs without a SCRIPT")
    bound = _positive("--max-norm", _MAX_NORM if max_norm is None else max_norm)
    longest = _positive("--timeout", _TIMEOUT_S if timeout is None else timeout)
    check_torch()
    if script is not None:
        from gradclip_cli.cli.record import note_options_of_script, options_among
        from gradclip_cli.cli.verify_script import DEFAULT_UPDATES, verify_script

        formats = [given for given in options_among(args or [], "--format", "-f") if given.replace("=", " ").split()[-1] in _FORMATS]
        if formats:
            note_options_of_script(script, formats[0])
        steps = DEFAULT_UPDATES if max_steps is None else max_steps
        judged = verify_script(script, args or [], module=module, max_steps=steps, output=output, force=force)
        return 0 if judged is None else _report(judged, format, no_color)
    if list_checks:
        if format != "text":
            raise UsageError(f"--list prints text and --format {format} is for a result; expected one of them", hint="leave --format out")
        return _list(select or [])
    from gradclip_cli.verify import Options

    options = Options(
        device or "auto",
        tuple(dtype or ()),
        bound,
        _ELEMENTS if elements is None else elements,
        world_size,
        longest,
        tuple(select or ()),
    )
    return _report(_battery(options), format, no_color)


def _refuse(options: Mapping[str, object], why: str) -> None:
    from gradclip_cli.errors import UsageError

    given = next((name for name, value in options.items() if value is not None), None)
    if given is not None:
        raise UsageError(f"{given} {why}", hint="see `gradclip verify --help`")


def _positive(option: str, value: float) -> float:
    import math

    from gradclip_cli.errors import UsageError

    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option} is {value:g}; expected a finite number above 0")
    return value


def _list(wanted: list[str]) -> int:
    from gradclip_cli.cli.output import emit
    from gradclip_cli.verify import select

    rows = []
    for t in select(wanted):
        ranks = f"at least {t.ranks} ranks" if t.ranks > 1 else ""
        rows.append(f"{t.id}  {t.name:<27} {t.rule}  {ranks}".rstrip())
    if _speaks():
        emit("\n".join(rows))
    return 0


def _battery(options: Options) -> Verification:
    from gradclip_cli.cli.progress import counting
    from gradclip_cli.verify import run, select

    with counting(len(select(options.wanted)) if _speaks() else 0) as tell:
        return _verification(run(options, lambda trial: tell(f"{trial.id} {trial.name}")))


def _speaks() -> bool:
    """Under torchrun every rank comes to the same verdict; one of them says it. A stray RANK is no torchrun."""
    return not all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")) or int(os.environ["RANK"]) == 0


def _verification(battery: Battery) -> Verification:
    """What reports are made of: each failure is a finding of the rule it stands for."""
    from gradclip_cli.model.check import Check, Status, Suite, Target, Verification
    from gradclip_cli.rules import device_rule

    checks = tuple(
        Check(j.trial.id, j.trial.name, j.status, j.outcome.detail, j.outcome.evidence, seconds=j.seconds) for j in battery.judged
    )
    findings = tuple(
        device_rule(j.trial.rule).finding(f"{j.trial.id} {j.trial.name}: {j.outcome.detail}", j.outcome.evidence)
        for j in battery.judged
        if j.status is Status.FAIL
    )
    notes = tuple(dict.fromkeys(j.outcome.note for j in battery.judged if j.outcome.note))
    target = Target(battery.device, battery.world_size, battery.torch, battery.dtypes)
    return Verification("device battery", target, None, Suite("", checks).judgement.value, findings, checks, notes)


def _report(verification: Verification, format: str, no_color: bool) -> int:
    from gradclip_cli.cli.output import emit, wants_color
    from gradclip_cli.errors import ExitCode
    from gradclip_cli.model.check import Judgement
    from gradclip_cli.report.verification import VERIFICATION_FORMATS

    if _speaks():
        emit(VERIFICATION_FORMATS[format](verification, color=wants_color(no_color)))
    codes = {Judgement.PASS: ExitCode.OK, Judgement.FAIL: ExitCode.FINDINGS, Judgement.CANNOT_JUDGE: ExitCode.CANNOT_JUDGE}
    return int(codes[Judgement(verification.verdict)])
