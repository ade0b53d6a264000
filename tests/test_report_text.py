import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len

from gradclip_cli.model.detection import Detection, Spike
from gradclip_cli.model.finding import Severity, Verdict
from gradclip_cli.model.run import NormStage, Sampling
from gradclip_cli.report import render_text, wording
from gradclip_cli.report.escape import ascii_only, visible
from gradclip_cli.wording import number
from tests import report_cases as cases

EVERY = {**{name: make() for name, make in cases.SHOWN.items()}, **cases.odd()}


def text(*analyses: object, width: int = 80) -> str:
    return render_text(analyses, width=width, unicode=True)  # type: ignore[arg-type]


def paragraphs(report: str) -> list[str]:
    """Blocks between blank lines, each as one line without repeated spaces."""
    return [" ".join(block.split()) for block in report.split("\n\n")]


# What must be there


def test_verdict_first_in_a_sentence_then_what_was_read() -> None:
    first, read, *_ = paragraphs(text(cases.diverged()))
    assert first == (
        "DIVERGED runs/a The loss left its trend at step 1,203, 3 steps after the gradient norm had exploded to 58× its usual level, "
        "and never came back."
    )
    assert read == (
        "source csv, 2,000 logged steps (0–1,999) loss train/loss 2,000 points, every step, 3.03 to 10.9 "
        "norm train/grad_norm 2,000 points, every step, 0.207 to 23, median 0.545, before clipping"
    )


def test_findings_with_evidence_then_what_could_not_be_judged_then_what_to_do() -> None:
    *_, findings, skipped, notes, following = paragraphs(text(cases.diverged()))
    assert findings == (
        # The finding that makes the verdict comes first.
        "Findings GC103 error 1,203–1,999 The loss left its trend at step 1203 and stayed 141 diverged % above what was expected "
        "to the end. "
        "height 4.45 · level 3.15 · excess_fraction 1.41 · led by GC101 at step 1,200, 3 steps before "
        "GC101 warning 1,200–1,201 The gradient norm reached 57 times its usual level exploding-step at step 1200. "
        "ratio 57.5 · level 0.4 · norm 23"
    )
    assert skipped == "Could not be judged GC108 the log has no loss scale GC109 no per-tensor norms are logged"
    assert notes == "Notes - Two rows repeated a step; the later one counts."
    assert following == (
        "Next gradclip explain GC103 what it means and what to do "
        "gradclip suggest-threshold runs/a what max_norm should be "
        "gradclip analyze runs/a --plot run.png the large picture"
    )


def test_a_threshold_is_offered_only_where_one_can_be_taken_from_the_norms() -> None:
    exploded = cases.spiked()
    norm = exploded.run.grad_norm
    assert norm is not None
    means = {**exploded.run.series, "grad_norm": replace(norm, sampling=Sampling.WINDOW_MEAN)}
    runs = {
        "as it is": (exploded.run, True),
        "after clipping": (replace(exploded.run, norm_stage=NormStage.POST_CLIP), False),
        "means over steps": (replace(exploded.run, series=means), False),
    }
    offered = {
        name: any("suggest-threshold" in c for c, _ in wording.next_commands(replace(exploded, run=r))) for name, (r, _) in runs.items()
    }
    assert offered == {name: expected for name, (_, expected) in runs.items()}
    assert not any("suggest-threshold" in c for c, _ in wording.next_commands(cases.stable()))


def test_without_a_verdict_what_was_found_all_the_same_stands_above() -> None:
    found = (
        cases.finding("GC306", "short-run", message="only 1 step logged"),
        cases.finding("GC108", "overflow-streak", message="12 overflow messages"),
    )
    report = text(replace(cases.short(), verdict=Verdict.CANNOT_JUDGE, findings=found))
    assert paragraphs(report)[0].endswith("Only 1 step logged. But see overflow-streak (GC108).")


def test_one_point_makes_no_picture() -> None:
    lone = cases.run(cases.series("loss", [6.3], steps=[10_198]))
    report = text(replace(cases.short(), run=lone))
    assert "1 point, always 6.3" in report
    assert "step 10,198\n" not in report


def test_an_explosion_in_the_same_step_led_to_it() -> None:
    found = next(f for f in cases.diverged().findings if f.led_by is not None)
    assert found.led_by is not None
    same = replace(found, led_by=replace(found.led_by, lead_steps=0))
    assert wording.evidence(same)[-1] == "led by GC101 at step 1,200, in the same step"


def test_long_lists_are_cut_and_say_so() -> None:
    report = text(cases.many())
    assert sum(line.startswith("GC101 warning") for line in report.splitlines()) == 4
    assert "+36 GC101: --format json lists them all" in report


def test_rows_stand_in_for_steps_the_log_has_not() -> None:
    found = cases.finding("GC101", "exploding-step", evidence={"ratio": 20.0, "first_row": 17, "last_row": 19})
    report = text(replace(cases.odd()["rows"], findings=(found,)))
    assert "100 rows without step numbers" in report
    assert "row 17–19" in report
    assert "first_row" not in report
    assert " row " in next(line for line in report.splitlines() if line.strip().startswith("0 "))


def test_several_runs_begin_with_an_overview() -> None:
    overview, *rest = text(cases.spiked(), cases.short(), cases.many()).split("\n\n")
    assert [" ".join(line.split()) for line in overview.splitlines()] == [
        "SPIKED gpt-124m 2,000 logged steps (0–1,999) 2 × GC101, GC102",
        "CANNOT-JUDGE a 3 logged steps (0–2) GC306",
        "EXPLODED a 2,000 logged steps (0–1,999) 40 × GC101",
    ]
    assert [block.splitlines()[1] for block in rest if block.startswith("─")] == [
        "SPIKED  runs/gpt-124m",
        "CANNOT-JUDGE  runs/a",
        "EXPLODED  runs/a",
    ]


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["/a/b/c.csv"], ["/a/b/c.csv"]),
        (["/a/b/c.csv#1", "/a/b/c.csv#2"], ["c.csv#1", "c.csv#2"]),
        (["/a/b/c/x", "/a/b/d/x"], ["c/x", "d/x"]),
        (["runs/a", "other/b"], ["runs/a", "other/b"]),
        (["/a/b", "b"], ["/a/b", "b"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_sources_of_several_runs_lose_their_common_directory(sources: list[str], names: list[str]) -> None:
    assert wording.short_sources([cases.analysis(cases.run(source=s)) for s in sources]) == names


# Sentences


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("stable", "No exploding step and no loss spike in 2,000 logged steps (0–1,999)."),
        ("spiked", "The loss spiked at step 1,003 (2.54 above 3.22), after the gradient norm exploded; it came back."),
        (
            "many",
            "The gradient norm exploded 40 times, at worst to 100× its usual level at step 1,990; "
            "whether the loss followed could not be judged.",
        ),
        (
            "nonfinite",
            "Not a finite number: the loss at 1 logged step (first: step 102), the gradient norm at 3 logged steps (first: step 100).",
        ),
        ("short", "This log is no basis for a verdict. Only 3 steps are logged; 20 are needed."),
        (
            "sampled",
            "As far as this log can show, no loss spike in 200 logged steps (0–9,950). No gradient norm is logged, so an exploding step "
            "cannot be seen; only one step in 50 is logged, and what happens in between leaves no trace.",
        ),
    ],
)
def test_headlines(name: str, sentence: str) -> None:
    a = cases.SHOWN[name]()
    if name == "many":
        a = replace(a, detection=replace(a.detection, judged_loss=0))
    assert wording.headline(a) == sentence


def test_a_loss_that_ends_as_nan_without_a_spike() -> None:
    run = cases.run(cases.series("loss", [2.0] * 40 + [np.nan] * 5, steps=np.arange(45) * 10))
    a = cases.analysis(run, Verdict.DIVERGED, detection=Detection(judged_loss=40, diverged=True))
    assert wording.headline(a) == "The loss is not a finite number from step 400 to the end."


def test_a_spike_that_ends_as_nan() -> None:
    assert wording.headline(cases.diverged(nan_tail=10)).endswith("its usual level, and ended non-finite.")


@pytest.mark.parametrize(
    ("recovered", "ending"),
    [
        (True, "it came back."),
        (False, "it did not come back fully."),
        (None, "the log ends too soon to tell whether it came back."),
    ],
)
def test_whether_a_spike_came_back(recovered: bool | None, ending: str) -> None:
    run = cases.run(cases.series("loss", [2.0] * 50))
    spikes = (Spike(40, 45, 41, 2.0, 1.5, recovered),)
    one = cases.analysis(run, Verdict.SPIKED, detection=Detection(spikes=spikes, judged_loss=40))
    assert wording.headline(one) == f"The loss spiked at step 40 (1.5 above 2); {ending}"


def test_many_spikes_in_one_sentence() -> None:
    run = cases.run(cases.series("loss", [2.0] * 50))
    spikes = (Spike(10, 12, 11, 2.0, 1.5, True), Spike(20, 22, 21, 2.0, 3.5, False), Spike(40, 45, 41, 2.0, 1.0, None))
    a = cases.analysis(run, Verdict.SPIKED, detection=Detection(spikes=spikes, judged_loss=40))
    assert wording.headline(a) == (
        "3 loss spikes, the highest at step 20 (3.5 above 2); 1 did not come back fully, for 1 the log ends too soon to tell."
    )


def test_stable_says_what_it_could_not_see() -> None:
    a = cases.stable()
    clipped = replace(a, run=replace(a.run, norm_stage=NormStage.POST_CLIP))
    assert wording.headline(clipped).startswith("As far as this log can show, ")
    assert "The norm was logged after clipping" in wording.headline(clipped)
    few = replace(a, detection=replace(a.detection, judged_norm=100))
    assert "Only 100 of 2,000 points of the gradient norm had enough history" in wording.headline(few)
    loss = cases.series("loss", np.ones(100), steps=np.arange(100) * 10, sampling=Sampling.WINDOW_MEAN)
    norm = cases.series("grad_norm", np.ones(100), steps=np.arange(100) * 10, sampling=Sampling.WINDOW_MEAN)
    means = cases.analysis(cases.run(loss, norm))
    assert "leaves no trace" not in wording.headline(means)
    assert "each a mean over the steps since the one before" in text(means).replace("\n        ", " ")


def test_stable_does_not_hide_warnings() -> None:
    found = (
        cases.finding("GC201", "always-clipping", Severity.WARNING),
        cases.finding("GC307", "damaged-file", Severity.ERROR),
        cases.finding("GC201", "always-clipping", Severity.WARNING),
        cases.finding("GC301", "sparse-log", Severity.INFO),
    )
    assert wording.headline(replace(cases.stable(), findings=found)) == (
        "No exploding step and no loss spike in 2,000 logged steps (0–1,999). But see always-clipping (GC201), damaged-file (GC307)."
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (3, "3"),
        (19560, "19,560"),
        (57.34, "57.34"),
        (0.4123456, "0.4123"),
        (12345.6, "12,346"),
        (1.5e19, "1.5e19"),
        (1e-20, "1e-20"),
        (-2.5e-7, "-2.5e-7"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert number(value, 4) == shown


# The picture


def picture(report: str) -> list[str]:
    """Lines of the picture: from the loss's title to the step axis."""
    lines = report.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("loss  ") and "points" not in line)
    return lines[start : start + 17]


def test_both_panels_share_the_axis_and_mark_events() -> None:
    lines = picture(text(cases.diverged()))
    assert lines[0].split() == ["loss", "train/loss", "▲", "1", "spike"]
    assert lines[8].split() == ["gradient", "norm", "train/grad_norm,", "log", "scale", "▲", "1", "explosion"]
    loss_axis, norm_axis, ends = lines[7], lines[15], lines[16]
    # Step 1,200 of 1,999 on 74 columns from column 6.
    assert loss_axis.index("▲") == norm_axis.index("▲") == 6 + round(1200 / 1999 * 147) // 2
    assert loss_axis.endswith("━") and norm_axis.endswith("─")
    assert ends.split() == ["0", "step", "1,999"]
    assert lines[1].split()[0] == "10.9" and lines[6].split()[0] == "3.03"


def test_one_step_in_a_million_is_seen() -> None:
    norm = np.full(1_000_000, 0.5)
    norm[500_000] = 5000.0
    lines = text(cases.analysis(cases.run(cases.series("grad_norm", norm)))).splitlines()
    top = next(line for line in lines if line.startswith("5,000"))
    assert sum(c > "\u2800" for c in top) == 1


def test_not_finite_values_are_crosses() -> None:
    lines = picture(text(cases.nonfinite()))
    assert "×" in lines[1] and "×" not in lines[6]
    assert "×" in lines[9] and "×" in lines[14]
    assert lines[8].endswith("× 3 not finite")


# What must hold for whatever is given


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", EVERY)
def test_no_line_is_too_wide(name: str, width: int) -> None:
    report = text(EVERY[name], width=width)
    assert max(cell_len(line) for line in report.splitlines()) <= min(width, 120)
    assert not any(line.endswith(" ") for line in report.splitlines())


@pytest.mark.parametrize("name", EVERY)
def test_ascii_where_the_output_can_do_no_more(name: str) -> None:
    report = render_text([EVERY[name]], width=80, unicode=False)
    assert report.isascii()
    assert max(map(len, report.splitlines())) <= 80


def test_unicode_and_width_follow_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    report = render_text([cases.diverged()])
    assert report.isascii() and "^" in report
    assert max(map(len, report.splitlines())) == 60


def test_ascii_keeps_the_layout() -> None:
    assert ascii_only("▲━×─…⠁⡀⡁⠀é") == "^=x-~'.: ?"


def test_colour_only_when_asked() -> None:
    plain = render_text([cases.diverged()], width=80, unicode=True)
    colored = render_text([cases.diverged()], width=80, color=True, unicode=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31mDIVERGED\x1b[0m" in colored
    from rich.text import Text

    assert "\n".join(line.rstrip() for line in Text.from_ansi(colored).plain.splitlines()) == plain.rstrip()


def test_nothing_in_a_name_is_interpreted() -> None:
    report = text(cases.hostile())
    assert "\x1b" not in report and "\x07" not in report and "\u202e" not in report and "\udc80" not in report
    report.encode("utf-8")
    assert r"runs/a\x1b[31mred\x07\nloss\u202e [bold]x[/bold] $x^2$ <b>|`@team`" in report


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("train/loss", "train/loss"),
        ("Verlust/größe 学习率 🚀", "Verlust/größe 学习率 🚀"),
        ("a\x1b]0;x\x07b", r"a\x1b]0;x\x07b"),
        ("a\r\nb\tc\x9b1m", r"a\r\nb\tc\x9b1m"),
        ("a\u202eb\u2066c\u200bd\u2028", r"a\u202eb\u2066c\u200bd\u2028"),
        ("\udcff\x00", r"\udcff\x00"),
    ],
)
def test_visible(name: str, shown: str) -> None:
    assert visible(name) == shown


def test_a_very_long_name_is_cut_in_the_middle() -> None:
    assert visible("a" * 10_000_000 + "z", 9) == "aaaa…aaaz"
    assert len(visible("\x1b" * 1000, 60)) <= 60


def test_many_skipped_rules_with_one_reason_are_one_line() -> None:
    block = next(p for p in paragraphs(text(cases.sampled())) if p.startswith("Could not"))
    assert block.count("no gradient norm is logged") == 1
    assert all(f"GC{i}" in block for i in (101, 104, 106, 107, 201, 203, 302))
    assert "GC201–GC203" in block


def test_neither_rich_nor_matplotlib_is_loaded_before_it_is_needed() -> None:
    code = "import sys, gradclip_cli.report; sys.exit(any(m in sys.modules for m in ('rich', 'matplotlib', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_severity_is_said_in_words() -> None:
    found = tuple(cases.finding("GC101", "exploding-step", s) for s in (Severity.INFO, Severity.ERROR, Severity.WARNING))
    report = text(replace(cases.stable(), findings=found))
    assert [line.split()[1] for line in report.splitlines() if line.startswith("GC101 ")] == ["error", "warning", "info"]
