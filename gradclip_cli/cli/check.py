"""`gradclip check`: may the long run start?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from gradclip_cli.model.check import Suite
    from gradclip_cli.model.finding import Analysis
    from gradclip_cli.policy import Policy
    from gradclip_cli.readers import Wanted
    from gradclip_cli.report.check import InForce


def check(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Log files, or directories to search for runs.", show_default=False),
    ] = None,
    format: Annotated[
        Literal["text", "json", "markdown", "junit", "github"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "text",
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Also write the result: FILE.xml (JUnit), .json, .md or .txt.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --report overwrite FILE.")] = False,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="First run what the configuration lists (else verify and probe), then judge it.")
    ] = False,
    select: Annotated[
        list[str] | None, typer.Option(metavar="RULE,...", help="Rules that count: ids, prefixes (GC1), names.", show_default=False)
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULE,...", help="Rules that do not.", show_default=False)] = None,
    fail_on: Annotated[
        Literal["error", "warning"] | None, typer.Option(help="The least severity that counts [default: error].", show_default=False)
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="A check that could not judge fails.", show_default=False)
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="SERIES,...", help="No verdict without these [default: loss,grad_norm].", show_default=False),
    ] = None,
    min_steps: Annotated[int | None, typer.Option(metavar="N", help="Fewest logged steps [default: 30].", show_default=False)] = None,
    max_clipped_fraction: Annotated[
        float | None, typer.Option(metavar="F", help="Largest share of clipped steps, 0 to 1.", show_default=False)
    ] = None,
    max_exploding_per_1000: Annotated[
        float | None, typer.Option("--max-exploding-per-1000", metavar="N", help="Most exploding steps.", show_default=False)
    ] = None,
    max_norm: Annotated[
        float | None, typer.Option(metavar="M", help="The clipping bound, where the log does not tell it.", show_default=False)
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Compare loss and norm with those of a good run.", show_default=False)
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(metavar="F", help="Largest drift from the baseline [default: 0.1].", show_default=False)
    ] = None,
    loss: Annotated[str | None, typer.Option(metavar="KEY", help="The training loss.", show_default=False)] = None,
    grad_norm: Annotated[str | None, typer.Option(metavar="KEY", help="The global gradient norm.", show_default=False)] = None,
    lr: Annotated[str | None, typer.Option(metavar="KEY", help="The learning rate.", show_default=False)] = None,
    step: Annotated[str | None, typer.Option(metavar="KEY", help="The step counter.", show_default=False)] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds for each part of the preflight [default: 1800].", show_default=False)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Configuration; else gradclip.toml or pyproject.toml, up to the repository.", show_default=False),
    ] = None,
    show_policy: Annotated[bool, typer.Option("--show-policy", help="Print what is in force and where it came from.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, also on a terminal.")] = False,
) -> int:
    """Judge runs by a policy, for continuous integration: may the long run start?

    Without any configuration a run passes when it logs a loss and a gradient norm from before clipping, on at least 30
    steps, and no rule found an error in it. Warnings are told and do not count; --fail-on warning changes that, and a
    rule that --select names in full counts from its own severity on. Every flag of the policy is a key of the same name
    in gradclip.toml, or under [tool.gradclip] in pyproject.toml; a flag wins over a key.

    Exit status: 0 judged and clean; 1 a finding that counts; 2 bad command line or configuration; 3 no finding that
    counts, but something that is required could not be judged. A finding (1) outweighs what could not be judged (3).
    """
    # No linear algebra happens here, and the threads numpy starts for it take a tenth of the time of a small log.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    flags = {
        "select": select,
        "ignore": ignore,
        "fail-on": fail_on,
        "strict": strict,
        "require": require,
        "min-steps": min_steps,
        "max-clipped-fraction": max_clipped_fraction,
        "max-exploding-per-1000": max_exploding_per_1000,
        "max-norm": max_norm,
        "baseline": None if baseline is None else str(baseline),
        "tolerance": tolerance,
        "loss": loss,
        "grad-norm": grad_norm,
        "lr": lr,
        "step": step,
        "timeout": timeout,
    }
    from gradclip_cli.cli.output import emit, tell, wants_color
    from gradclip_cli.errors import UsageError
    from gradclip_cli.model.check import overall
    from gradclip_cli.report.check import CHECK_FORMATS, EXIT_STATUS, check_report_target, render_policy, report_format

    policy = _policy(flags, config)
    if show_policy:
        emit(render_policy(_in_force(policy), _bars(policy), as_json=format == "json"))
        return 0
    for target in report or ():
        check_report_target(target, force=force)
    first = preflight or bool(not runs and policy.preflight)
    paths = runs or (() if preflight else policy.runs)
    if not paths and not first:
        raise UsageError(
            "no RUN to judge", hint="name a log, or list `runs` or `preflight` in the configuration, or `gradclip check --preflight`"
        )
    suites = [*(_preflight(policy) if first else ()), *_judged(paths, policy)]
    settings = _in_force(policy)
    emit(CHECK_FORMATS[format](suites, settings, color=wants_color(no_color)))
    for target in report or ():
        target.write_text(CHECK_FORMATS[report_format(target)](suites, settings, color=False), encoding="utf-8")
        tell(f"wrote {target}")
    return EXIT_STATUS[overall(suites)]


def _policy(flags: Mapping[str, Any], config: Path | None) -> Policy:
    from gradclip_cli.policy import Layer, find_config, load_config, settle
    from gradclip_cli.rules import PAGES

    found = config or find_config(Path.cwd())
    given = {key: value for key, value in flags.items() if value is not None}
    return settle([*(load_config(found) if found else ()), Layer("command line", given)], PAGES)


def _in_force(policy: Policy) -> list[InForce]:
    from gradclip_cli.policy import in_force
    from gradclip_cli.report.check import InForce

    return [InForce(setting.key, value, origin) for setting, value, origin in in_force(policy)]


def _bars(policy: Policy) -> list[tuple[str, str]]:
    from gradclip_cli.rules import PAGES

    return [(rule.id, policy.bar(rule) or "") for rule in PAGES]


def _preflight(policy: Policy) -> Iterator[Suite]:
    """Run what the policy lists and judge what it recorded; nothing of it is left behind but what the command lines name a place for."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from gradclip_cli.cli.preflight import preflight

    with TemporaryDirectory(prefix="gradclip-") as scratch:
        for stage in preflight(policy, Path(scratch)):
            if stage.recorded is None:
                yield stage.suite
                continue
            for suite in _judged([stage.recorded], policy):
                yield replace(suite, name=stage.suite.name, checks=(*stage.suite.checks, *suite.checks))


def _judged(paths: Sequence[Path], policy: Policy) -> Iterator[Suite]:
    """A suite for each run below the paths, and one for each file that could not be read."""
    from dataclasses import replace

    from gradclip_cli.analysis import analyze
    from gradclip_cli.cli.output import complain
    from gradclip_cli.cli.progress import reading
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.policy import judge, unreadable
    from gradclip_cli.readers import read
    from gradclip_cli.rules import RULES

    baseline = _baseline(policy.baseline, policy) if policy.baseline is not None and paths else None
    for path in paths:
        try:
            with reading(path):
                for result in read(path, _wanted(policy)):
                    if isinstance(result, GradclipError):
                        complain(result.message, result.hint)
                        yield unreadable(str(path), result.message)
                    else:
                        run = result if policy.max_norm is None else replace(result, max_norm=policy.max_norm)
                        yield judge(analyze(run), policy, RULES, baseline)
        except GradclipError as e:
            complain(e.message, e.hint)
            yield unreadable(str(path), e.message)


def _baseline(path: Path, policy: Policy) -> Analysis | str:
    """The analysis of the baseline, or why there is none."""
    from gradclip_cli.analysis import analyze
    from gradclip_cli.cli.output import complain
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.readers import read

    try:
        runs = [r for r in read(path, _wanted(policy)) if not isinstance(r, GradclipError)]
        if len(runs) != 1:
            raise GradclipError(f"{path}: holds {len(runs)} runs; expected one as the baseline", hint="name one of them")
    except GradclipError as e:
        complain(e.message, e.hint)
        return e.message
    return analyze(runs[0])


def _wanted(policy: Policy) -> Wanted:
    from gradclip_cli.readers import Wanted

    return Wanted(policy.loss, policy.grad_norm, policy.lr, policy.step)
