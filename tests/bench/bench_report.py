"""Reports of a run with 1,000,000 points, the picture beside an empty figure of the same size."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gradclip_cli.model.detection import Baseline, Detection
from gradclip_cli.model.finding import Analysis, Verdict
from gradclip_cli.model.run import CLIP_COEF, GRAD_NORM, LOSS, LOSS_SCALE, LR, Run, Series
from gradclip_cli.report import plot, render_json, render_markdown, render_text

NUM_POINTS = 1_000_000


def analysis(n: int) -> Analysis:
    rng = np.random.default_rng(0)
    steps = np.arange(n, dtype=np.int64)
    values = {
        LOSS: 3 + 8 * np.exp(-steps / (0.1 * n)) + 0.1 * rng.standard_normal(n),
        GRAD_NORM: np.exp(0.3 * rng.standard_normal(n)),
        LR: np.geomspace(1e-3, 1e-5, n),
        LOSS_SCALE: np.full(n, 65536.0),
        CLIP_COEF: rng.random(n),
    }
    level = {name: np.where(steps < 8, np.nan, np.median(values[name])) for name in (LOSS, GRAD_NORM)}
    found = Detection(
        norm=Baseline(level[GRAD_NORM], 10 * level[GRAD_NORM]),
        loss=Baseline(level[LOSS], 1.12 * level[LOSS]),
        judged_norm=n - 8,
        judged_loss=n - 8,
    )
    return Analysis(Run("bench", "csv", {k: Series(k, k, steps, v) for k, v in values.items()}), found, Verdict.STABLE, (), ())


def best_s(function: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def empty_figure() -> None:
    """What matplotlib takes for two empty panels of the picture's size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.1), dpi=144)
    figure.subplots(2)
    FigureCanvasAgg(figure).print_figure(io.BytesIO(), format="png", dpi=144)


def main() -> None:
    analyses = [analysis(NUM_POINTS)]
    with tempfile.TemporaryDirectory() as folder:
        png, svg = Path(folder, "run.png"), Path(folder, "run.svg")
        empty = best_s(empty_figure)
        seconds = {
            "text": best_s(lambda: render_text(analyses, width=80)),
            "markdown": best_s(lambda: render_markdown(analyses)),
            "json": best_s(lambda: render_json(analyses)),
            "PNG": best_s(lambda: plot(analyses, png, force=True)),
            "SVG": best_s(lambda: plot(analyses, svg, force=True)),
        }
        sizes = {"PNG": png.stat().st_size, "SVG": svg.stat().st_size}
    print(f"reports of {NUM_POINTS:,} steps, 5 series")
    for name, s in seconds.items():
        extra = f"  {sizes[name] / 1000:6.0f} kB  {s / empty:4.1f} x an empty figure ({empty * 1000:.0f} ms)" if name in sizes else ""
        print(f"  {name:<9} {s * 1000:6.0f} ms{extra}")


if __name__ == "__main__":
    main()
