"""Analyses built by hand, as the rules would make them, for the tests of the reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gradclip_cli.model.detection import Baseline, Detection, Explosion, Spike
from gradclip_cli.model.finding import Analysis, Finding, Lead, Severity, Skipped, Verdict
from gradclip_cli.model.run import NormStage, Run, Sampling, Series


def series(name: str, values: object, *, steps: object = None, key: str | None = None, sampling: Sampling = Sampling.INSTANT) -> Series:
    v = np.asarray(values, np.float64)
    s = np.arange(len(v), dtype=np.int64) if steps is None else np.asarray(steps, np.int64)
    return Series(name, key or f"train/{name}", s, v, sampling)


def run(*all_series: Series, source: str = "runs/a", **rest: object) -> Run:
    return Run(source, "csv", {s.name: s for s in all_series}, **rest)  # type: ignore[arg-type]


def analysis(
    r: Run,
    verdict: Verdict = Verdict.STABLE,
    *,
    detection: Detection | None = None,
    findings: tuple[Finding, ...] = (),
    skipped: tuple[Skipped, ...] = (),
) -> Analysis:
    if detection is None:
        detection = Detection(judged_norm=0 if r.grad_norm is None else len(r.grad_norm), judged_loss=0 if r.loss is None else len(r.loss))
    return Analysis(r, detection, verdict, findings, skipped)


def finding(
    rule: str,
    name: str,
    severity: Severity = Severity.WARNING,
    message: str = "Something was seen.",
    first: int | None = None,
    last: int | None = None,
    evidence: Mapping[str, float] | None = None,
    led_by: Lead | None = None,
) -> Finding:
    return Finding(rule, name, severity, message, first, last, evidence or {}, led_by)


def baseline(values: np.ndarray, factor: float) -> Baseline:
    """A level that follows with a lag, and a bound that many times above."""
    level = np.copy(values)
    for i in range(1, len(level)):
        level[i] = 0.95 * level[i - 1] + 0.05 * values[i] if np.isfinite(values[i]) and values[i] < 3 * level[i - 1] else level[i - 1]
    level[:8] = np.nan
    return Baseline(level, level * factor)


def training(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A loss that falls and a gradient norm, both noisy."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    loss = 3.1 + 7.8 * np.exp(-t / (0.12 * n)) + 0.05 * rng.standard_normal(n)
    norm = (0.4 + 3 * np.exp(-t / (0.03 * n))) * np.exp(0.18 * rng.standard_normal(n))
    return loss, norm


def stable(n: int = 2000) -> Analysis:
    loss, norm = training(n)
    found = Detection(norm=baseline(norm, 10), loss=baseline(loss, 1.12), judged_norm=n - 8, judged_loss=n - 8)
    lr = np.full(n, 3e-4)
    return analysis(
        run(
            series("loss", loss), series("grad_norm", norm), series("lr", lr), norm_stage=NormStage.PRE_CLIP, stage_reason="the key says so"
        ),
        detection=found,
        skipped=(Skipped("GC108", "the log has no loss scale"), Skipped("GC109", "no per-tensor norms are logged")),
    )


def spiked(n: int = 2000) -> Analysis:
    """Two explosions; the second leads a spike by three steps, which comes back."""
    loss, norm = training(n, seed=1)
    a, b = n // 4, n // 2
    norm[a], norm[b : b + 2] = 9.0, (31.0, 12.0)
    loss[b + 3 : b + 43] += 2.5 * np.exp(-np.arange(40) / 12)
    found = Detection(
        explosions=(Explosion(a, a, a, 0.41, 22.0), Explosion(b, b + 1, b, 0.4, 77.5)),
        spikes=(Spike(b + 3, b + 42, b + 3, 3.22, float(loss[b + 3]) - 3.22, True, led_by=1),),
        norm=baseline(norm, 10),
        loss=baseline(loss, 1.12),
        judged_norm=n - 8,
        judged_loss=n - 8,
    )
    return analysis(
        run(series("loss", loss), series("grad_norm", norm), source="runs/gpt-124m", norm_stage=NormStage.PRE_CLIP, max_norm=1.0),
        Verdict.SPIKED,
        detection=found,
        findings=(
            finding(
                "GC101",
                "exploding-step",
                Severity.WARNING,
                f"The gradient norm reached 22 times its usual level at step {a}.",
                a,
                a,
                {"ratio": 22.0, "level": 0.41, "norm": 9.0},
            ),
            finding(
                "GC101",
                "exploding-step",
                Severity.WARNING,
                f"The gradient norm reached 78 times its usual level at step {b}.",
                b,
                b + 1,
                {"ratio": 77.5, "level": 0.4, "norm": 31.0},
            ),
            finding(
                "GC102",
                "loss-spike",
                Severity.WARNING,
                "The loss rose 2.5 above its trend and came back after 40 steps.",
                b + 3,
                b + 42,
                {"height": 2.5, "level": 3.22},
                Lead("GC101", b, 3),
            ),
        ),
        skipped=(Skipped("GC108", "the log has no loss scale"), Skipped("GC109", "no per-tensor norms are logged")),
    )


def diverged(n: int = 2000, nan_tail: int = 0) -> Analysis:
    loss, norm = training(n, seed=2)
    b = int(0.6 * n)
    norm[b : b + 2] = (23.0, 15.0)
    norm[b + 40 :] *= 4
    loss[b + 3 :] = 7.6 - 0.3 * np.exp(-np.arange(n - b - 3) / 50) + 0.06 * np.random.default_rng(3).standard_normal(n - b - 3)
    if nan_tail:
        loss[-nan_tail:] = np.nan
        norm[-nan_tail:] = np.nan
    found = Detection(
        explosions=(Explosion(b, b + 1, b, 0.4, 57.5),),
        spikes=(Spike(b + 3, n - 1, b + 90, 3.15, 4.45, False, excess=1.41, fatal=True, led_by=0),),
        norm=baseline(norm, 10),
        loss=baseline(loss, 1.12),
        judged_norm=n - 8,
        judged_loss=n - 8,
        diverged=True,
    )
    return analysis(
        run(
            series("loss", loss),
            series("grad_norm", norm),
            norm_stage=NormStage.PRE_CLIP,
            notes=("Two rows repeated a step; the later one counts.",),
        ),
        Verdict.DIVERGED,
        detection=found,
        findings=(
            finding(
                "GC103",
                "diverged",
                Severity.ERROR,
                f"The loss left its trend at step {b + 3} and stayed 141 % above what was expected to the end.",
                b + 3,
                n - 1,
                {"height": 4.45, "level": 3.15, "excess_fraction": 1.41},
                Lead("GC101", b, 3),
            ),
            finding(
                "GC101",
                "exploding-step",
                Severity.WARNING,
                f"The gradient norm reached 57 times its usual level at step {b}.",
                b,
                b + 1,
                {"ratio": 57.5, "level": 0.4, "norm": 23.0},
            ),
        ),
        skipped=(Skipped("GC108", "the log has no loss scale"), Skipped("GC109", "no per-tensor norms are logged")),
    )


def sampled() -> Analysis:
    """One step in 50, no norm."""
    loss, _ = training(200)
    return analysis(
        run(series("loss", loss, steps=np.arange(200) * 50), source="out.log"),
        findings=(finding("GC305", "no-grad-norm", Severity.INFO, "No gradient norm is logged."),),
        skipped=tuple(Skipped(f"GC{i}", "no gradient norm is logged") for i in (101, 104, 106, 107, 201, 202, 203, 302)),
    )


def short() -> Analysis:
    return analysis(
        run(series("loss", [3.0, 2.9, 2.8])),
        Verdict.CANNOT_JUDGE,
        detection=Detection(),
        findings=(finding("GC306", "short-run", Severity.INFO, "Only 3 steps are logged; 20 are needed."),),
        skipped=(Skipped("GC102", "only 3 steps"),),
    )


def nonfinite() -> Analysis:
    loss, norm = training(300)
    norm[[100, 101, 180]] = (np.inf, np.nan, -np.inf)
    loss[102] = np.nan
    return analysis(
        run(series("loss", loss), series("grad_norm", norm)),
        Verdict.NONFINITE,
        findings=(
            finding("GC104", "nonfinite-norm", Severity.ERROR, "The gradient norm was not finite at 3 steps.", 100, 180, {"num_steps": 3}),
            finding(
                "GC105",
                "nonfinite-loss",
                Severity.ERROR,
                "The loss was not finite at 1 step.",
                102,
                102,
                {"num_steps": 1, "loss": float("nan")},
            ),
        ),
    )


def many(n: int = 2000) -> Analysis:
    """Forty explosions."""
    loss, norm = training(n)
    at = np.linspace(n // 10, n - 10, 40).astype(int)
    norm[at] = np.linspace(8, 40, 40)
    found = Detection(
        explosions=tuple(Explosion(i, i, i, 0.4, float(norm[i]) / 0.4) for i in map(int, at)),
        norm=baseline(norm, 10),
        judged_norm=n,
        judged_loss=n,
    )
    return analysis(
        run(series("loss", loss), series("grad_norm", norm)),
        Verdict.EXPLODED,
        detection=found,
        findings=tuple(
            finding(
                "GC101",
                "exploding-step",
                message=f"Norm {norm[i]:.3g}.",
                first=int(i),
                last=int(i),
                evidence={"ratio": float(norm[i]) / 0.4},
            )
            for i in at
        ),
    )


def odd() -> dict[str, Analysis]:
    """What pictures stumble over: few points, nothing finite, no range, huge ranges, huge steps."""
    ramp = np.linspace(0, 1, 50)
    cases = {
        "one point": run(series("loss", [2.5]), series("grad_norm", [0.3])),
        "two points": run(series("loss", [2.5, 2.4]), series("grad_norm", [0.3, 0.2])),
        "ten points": run(series("loss", training(10)[0]), series("grad_norm", training(10)[1])),
        "all nan": run(series("loss", [np.nan] * 30), series("grad_norm", [np.nan] * 30)),
        "only inf": run(series("loss", [np.inf] * 30), series("grad_norm", [-np.inf] * 30)),
        "constant": run(series("loss", [2.0] * 30), series("grad_norm", [1.0] * 30)),
        "zeros": run(series("loss", [0.0] * 30), series("grad_norm", [0.0] * 30)),
        "some zeros": run(series("loss", ramp), series("grad_norm", ramp)),
        "wide": run(series("loss", np.geomspace(1e-20, 1e19, 50)), series("grad_norm", np.geomspace(1e19, 1e-20, 50))),
        "extreme": run(series("loss", [1.7e308, -1.7e308] * 20), series("grad_norm", [1.7e308, 5e-324] * 20)),
        "huge constant": run(series("loss", [1.7e308] * 20), series("grad_norm", [1.7e308] * 20)),
        "negative norm": run(series("loss", -ramp), series("grad_norm", -ramp)),
        "both signs": run(series("loss", np.r_[ramp - 0.5, 1e9]), series("grad_norm", np.r_[ramp - 0.5, 1e9])),
        "huge steps": run(
            series("loss", ramp, steps=9 * 10**18 + np.arange(50)), series("grad_norm", 1 + ramp, steps=9 * 10**18 + np.arange(50))
        ),
        "all int64": run(series("loss", ramp, steps=np.arange(-25, 25, dtype=np.int64) * (2**63 // 25))),
        "alternating nan": run(series("loss", np.where(np.arange(5000) % 2, np.nan, training(5000)[0]))),
        "norm only": run(series("grad_norm", training(100)[1])),
        "lr only": run(series("lr", [1e-4] * 30)),
        "no series": run(),
        "rows": run(series("loss", training(100)[0]), steps_known=False),
    }
    return {name: analysis(r, Verdict.STABLE if r.loss or r.grad_norm else Verdict.CANNOT_JUDGE) for name, r in cases.items()}


def hostile() -> Analysis:
    """Names with terminal escape codes, markup, line breaks, bidirectional marks, mathematics, HTML and lone surrogates."""
    name = "a\x1b[31mred\x07\nloss‮ [bold]x[/bold] $x^2$ <b>|`@team` \udc80"
    return analysis(
        run(
            series("loss", training(50)[0], key=name),
            series("grad_norm", training(50)[1], key=name),
            source=f"runs/{name}",
            notes=(f"Left out: {name}",),
        ),
        findings=(finding("GC305", "no-grad-norm", Severity.INFO, f"No key like {name}."),),
        skipped=(Skipped("GC101", f"no {name}"),),
    )


SHOWN: dict[str, Callable[[], Analysis]] = {f.__name__: f for f in (stable, spiked, diverged, sampled, short, nonfinite, many, hostile)}
