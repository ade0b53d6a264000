import re
import struct
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.errors import ExitCode, GradclipError, UsageError
from gradclip_cli.model.detection import Baseline, Detection
from gradclip_cli.model.finding import Analysis
from gradclip_cli.model.run import NormStage
from gradclip_cli.report import check_plot_target, plot
from gradclip_cli.report.panel import Panel, Scale, panels
from gradclip_cli.report.ticks import step_ticks, value_ticks
from tests import report_cases as cases


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def words(path: Path) -> list[str]:
    """The texts of an SVG."""
    return ["".join(e.itertext()) for e in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def panel(analysis: Analysis, which: int) -> Panel:
    return panels(analysis)[which]


# The file


def test_png(tmp_path: Path) -> None:
    plot([cases.spiked()], tmp_path / "run.png")
    width, height = png_size(tmp_path / "run.png")
    assert width == 1440 and 800 < height < 1200
    assert [p.name for p in tmp_path.iterdir()] == ["run.png"]


def test_svg_says_what_the_report_says(tmp_path: Path) -> None:
    plot([cases.spiked()], tmp_path / "run.svg")
    texts = words(tmp_path / "run.svg")
    for expected in (
        "SPIKED · runs/gpt-124m",
        "The loss spiked at step 1,003 (2.54 above 3.22), after the gradient norm exploded; it came back.",
        "step 1,003: +2.54, 3 steps after the explosion",
        "step 500: 22×",
        "step 1,000: 78×",
        "max_norm 1",
        "2 explosions · 5.2% above max_norm · log scale",
        "train/grad_norm",
        "usual level",
        "up to the alarm bound",
        "step",
        "1,000",
    ):
        assert expected in texts


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        plot([cases.nonfinite()], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_settings_of_the_user_neither_matter_nor_change(tmp_path: Path) -> None:
    import matplotlib as mpl

    plot([cases.stable()], tmp_path / "a.svg")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9}):
        before = dict(mpl.rcParams)
        plot([cases.stable()], tmp_path / "b.svg")
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_never_overwrites_without_force(tmp_path: Path) -> None:
    target = tmp_path / "run.png"
    target.write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"run\.png: is there already") as e:
        plot([cases.stable()], target)
    assert e.value.hint == "--force overwrites it"
    assert target.read_bytes() == b"precious"
    plot([cases.stable()], target, force=True)
    assert png_size(target)[0] == 1440


def test_a_link_is_replaced_and_what_it_points_to_is_not_touched(tmp_path: Path) -> None:
    precious = tmp_path / "precious.png"
    precious.write_bytes(b"precious")
    (tmp_path / "run.png").symlink_to(precious)
    plot([cases.stable()], tmp_path / "run.png", force=True)
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run.pdf", r"found the suffix \.pdf; expected \.png or \.svg"),
        ("run", r"found no suffix; expected \.png or \.svg"),
        ("missing/run.png", r"there is no directory .*missing"),
        ("folder.png", "found a directory"),
    ],
)
def test_bad_targets(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match=message) as e:
        check_plot_target(tmp_path / name)
    assert e.value.code == ExitCode.USAGE


def test_suffix_in_capitals(tmp_path: Path) -> None:
    plot([cases.short()], tmp_path / "RUN.PNG")
    assert png_size(tmp_path / "RUN.PNG")[0] == 1440


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: Path, target: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(GradclipError, match=r"run\.png: cannot be written \(No space left on device\)"):
        plot([cases.short()], tmp_path / "run.png")
    assert list(tmp_path.iterdir()) == []


# What is drawn


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_whatever_the_numbers_are(tmp_path: Path, suffix: str) -> None:
    # Any warning of numpy or matplotlib is an error here.
    for i, (name, analysis) in enumerate(cases.odd().items()):
        path = tmp_path / f"{i}{suffix}"
        plot([analysis], path)
        if suffix == ".png":
            assert png_size(path)[0] == 1440, name
        else:
            assert f"{analysis.verdict.value.upper()} · runs/a" in words(path), name


def test_names_are_shown_and_not_interpreted(tmp_path: Path) -> None:
    plot([cases.hostile()], tmp_path / "a.svg")
    title = next(t for t in words(tmp_path / "a.svg") if t.startswith("STABLE"))
    assert title.startswith(r"STABLE · runs/a\x1b[31mred\x07\nloss\u202e") and title.endswith(r"$x^2$ <b>|`@team` \udc80")


def test_letters_the_font_has_not_warn_nobody(tmp_path: Path) -> None:
    run = cases.run(cases.series("loss", [1.0, 2.0], key="损失 🚀"), source="学习")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plot([cases.analysis(run)], tmp_path / "a.png")
    assert caught == []


def test_several_runs_and_no_more_than_six(tmp_path: Path) -> None:
    plot([cases.stable()] * 7 + [cases.diverged()], tmp_path / "a.svg")
    titles = [t for t in words(tmp_path / "a.svg") if re.match("[A-Z]+ · ", t)]
    assert titles == ["STABLE · a"] * 5 + ["DIVERGED · a"]
    assert "6 of 8 runs, the gravest verdicts" in words(tmp_path / "a.svg")
    plot([cases.stable(), cases.diverged()], tmp_path / "b.png")
    assert png_size(tmp_path / "b.png")[0] == 2160


def test_labels_do_not_overlap_and_name_the_largest(tmp_path: Path) -> None:
    plot([cases.many()], tmp_path / "a.svg")
    labels = [t for t in words(tmp_path / "a.svg") if t.startswith("step ") and "×" in t]
    assert "step 1,990: 100×" in labels
    assert 3 <= len(labels) <= 8


def test_one_extreme_in_a_million_points_is_in_the_picture(tmp_path: Path) -> None:
    norm = np.full(1_000_000, 0.5)
    norm[[333_333, 666_666]] = (5e9, 5e-9)
    plot([cases.analysis(cases.run(cases.series("grad_norm", norm)))], tmp_path / "a.svg")
    (curve,) = [
        p.get("d", "")
        for p in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}path")
        if "stroke: #5f6b77" in (p.get("style") or "") and "L" in p.get("d", "") and len(p.get("d", "")) > 100
    ]
    heights = [float(y) for _, y in re.findall(r"[ML] (\S+) (\S+)", curve)]
    # 10 decades up and 8 down from the usual 0.5, the axis is logarithmic.
    usual = float(np.median(heights))
    assert (usual - min(heights)) / (max(heights) - usual) == pytest.approx(np.log10(5e9 / 0.5) / np.log10(0.5 / 5e-9), rel=0.02)


def test_max_norm_from_the_evidence_when_the_log_has_none() -> None:
    a = cases.stable()
    assert panel(a, 1).max_norm is None
    found = replace(a, findings=(cases.finding("GC201", "always-clipping", evidence={"max_norm": 0.25}),))
    assert panel(found, 1).max_norm == 0.25
    assert panel(found, 1).clipped_fraction == np.mean(a.run.series["grad_norm"].values > 0.25)
    after = replace(found, run=replace(a.run, norm_stage=NormStage.POST_CLIP))
    assert panel(after, 1).clipped_fraction is None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([3.0, 2.0, 1.0] * 10, "linear"),
        ([200.0, 20.0, 1.0] * 10, "log"),
        # Ninety-five of a hundred points in the lowest tenth.
        ([30.0] + [1.1] * 99, "log"),
        ([1.0, -1.0, 0.0] * 10, "linear"),
        ([1.0, -1.0, 0.0] * 50 + [1e9], "asinh"),
        ([0.0] * 30, "linear"),
        ([np.nan] * 30, "linear"),
    ],
)
def test_scale_of_the_loss(values: list[float], kind: str) -> None:
    assert panel(cases.analysis(cases.run(cases.series("loss", values))), 0).scale.kind == kind


def test_heights_keep_order_and_zero_stays_below_the_smallest() -> None:
    scale = panel(cases.analysis(cases.run(cases.series("grad_norm", [0.0, 1e-3, 1.0, 1e4]))), 0).scale
    heights = scale.height(np.array([0.0, 1e-3, 1.0, 1e4, np.nan]))
    assert heights[:4].tolist() == pytest.approx([-3 - np.log10(2), -3, 0, 4])
    assert np.isnan(heights[4])


def test_baseline_of_nan_only(tmp_path: Path) -> None:
    a = cases.stable(50)
    nothing = Baseline(np.full(50, np.nan), np.full(50, np.nan))
    plot([replace(a, detection=Detection(norm=nothing, loss=nothing))], tmp_path / "a.png")
    assert png_size(tmp_path / "a.png")[0] == 1440


# Ticks


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (2.5, 11.4, ["4", "6", "8", "10"]),
        (2.41, 2.47, ["2.42", "2.44", "2.46"]),
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.0, 1.2, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        (-1e12, 1e12, ["-1e12", "-5e11", "0", "5e11", "1e12"]),
    ],
)
def test_linear_ticks(low: float, high: float, labels: list[str]) -> None:
    assert value_ticks(Scale("linear"), low, high)[1] == labels


def test_log_ticks() -> None:
    labels = value_ticks(Scale("log"), -20.0, 19.0)[1]
    assert labels == ["1e-18", "1e-12", "1e-6", "1", "1e6", "1e12", "1e18"]
    assert value_ticks(Scale("log"), -0.8, 0.8)[1] == ["0.2", "0.5", "1", "2", "5"]


def test_asinh_ticks() -> None:
    scale = Scale("asinh", 0.5)
    places, labels = value_ticks(scale, *scale.height(np.array([-0.5, 1e9])).tolist())
    assert labels == ["0", "1", "100", "10,000", "1e6", "1e8"]
    assert places[:2] == [0.0, np.arcsinh(2)]


def test_step_ticks() -> None:
    assert step_ticks(0, 1999, 7) == ([0.0, 500.0, 1000.0, 1500.0], ["0", "500", "1,000", "1,500"])
    assert step_ticks(900, 1999, 7) == ([100.0, 300.0, 500.0, 700.0, 900.0], ["1,000", "1,200", "1,400", "1,600", "1,800"])
    assert step_ticks(5, 5, 7) == ([0.0], ["5"])
    first = 9 * 10**18
    assert step_ticks(first, first + 49, 4)[1][:2] == ["9,000,000,000,000,000,000", "9,000,000,000,000,000,020"]
    assert step_ticks(first, first + 49, 4)[0][:2] == [0.0, 20.0]
