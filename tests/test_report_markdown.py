import re

import pytest

from gradclip_cli.report import render_markdown
from gradclip_cli.report.escape import markdown, markdown_code
from tests import report_cases as cases


def test_same_content_as_the_text() -> None:
    report = render_markdown([cases.spiked()])
    lines = report.splitlines()
    assert lines[0] == "### spiked: `runs/gpt-124m`"
    assert lines[2] == "The loss spiked at step 1,003 (2.54 above 3.22), after the gradient norm exploded; it came back."
    assert "| norm | `train/grad_norm` | 2,000 points, every step, 0.226 to 31, median 0.411, before clipping, max\\_norm 1 |" in lines
    assert (
        "| GC102 loss-spike | warning | 1,003–1,042 | The loss rose 2.5 above its trend and came back after 40 steps."
        "<br>height 2.5 · level 3.22 · led by GC101 at step 1,000, 3 steps before |"
    ) in lines
    assert "- GC108: the log has no loss scale" in lines
    assert "- `gradclip explain GC102`: what it means and what to do" in lines
    picture = report.split("```text\n")[1].split("```")[0].splitlines()
    assert len(picture) == 17 and "▲" in picture[7] and max(map(len, picture)) <= 80


def test_several_runs_begin_with_a_table() -> None:
    lines = render_markdown([cases.spiked(), cases.short()]).splitlines()
    assert lines[:4] == [
        "| verdict | run | read | findings |",
        "| --- | --- | --- | --- |",
        "| **spiked** | `gpt-124m` | 2,000 logged steps (0–1,999) | 2 × GC101, GC102 |",
        "| **cannot-judge** | `a` | 3 logged steps (0–2) | GC306 |",
    ]


@pytest.mark.parametrize("name", [*cases.SHOWN, *cases.odd()])
def test_every_table_row_has_as_many_cells_as_its_header(name: str) -> None:
    analysis = cases.SHOWN[name]() if name in cases.SHOWN else cases.odd()[name]
    for block in render_markdown([analysis, analysis]).split("\n\n"):
        if block.startswith("| "):
            widths = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
            assert len(widths) == 1, block


def test_nothing_in_a_name_is_interpreted() -> None:
    report = render_markdown([cases.hostile()])
    assert "\x1b" not in report and "\u202e" not in report
    report.encode("utf-8")
    fence = report.index("```text")
    prose = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", report[:fence] + report[report.index("```", fence + 3) + 3 :])
    assert "<b>" not in prose and "@team" not in prose


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b*c*", r"a\_b\*c\*"),
        ("[x](http://y)", r"\[x\](http:<!-- -->//y)"),
        ("<img src=x>&amp;", "&lt;img src=x&gt;&amp;amp;"),
        ("@team #12 www.x.org", r"@<!-- -->team \#<!-- -->12 www<!-- -->.x.org"),
        ("`code` $x$ ~a~", r"\`code\` \$x\$ \~a\~"),
        ("line\nbreak", r"line\\nbreak"),
    ],
)
def test_prose(text: str, escaped: str) -> None:
    assert markdown(text) == escaped


@pytest.mark.parametrize(("text", "span"), [("a", "`a`"), ("a`b", "``a`b``"), ("`", "`` ` ``"), ("``a", "``` ``a ```"), ("", "` `")])
def test_code(text: str, span: str) -> None:
    assert markdown_code(text) == span


def test_a_pipe_does_not_split_a_cell() -> None:
    run = cases.run(cases.series("loss", [1.0] * 40, key="a|b"))
    assert "| loss | `a\\|b` | 40 points" in render_markdown([cases.analysis(run)])
