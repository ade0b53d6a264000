"""The documentation says what the program does."""

from __future__ import annotations

import re

import pytest

from docs import generate
from gradclip_cli.cli import COMMANDS, load
from gradclip_cli.readers import READERS
from gradclip_cli.rules import RULES
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_generated_parts_are_current() -> None:
    assert generate.stale() == [], "run `make docs` and look at what it changed"


def test_every_command_and_rule_is_documented() -> None:
    for name, place, line in COMMANDS:
        assert f"gradclip {name}" in README
        assert load(place).__doc__
        assert len(line) <= 55, "`gradclip --help` would cut it"
    for rule in RULES:
        assert rule.id in README


def test_every_format_is_documented() -> None:
    table = README[README.index("## What it reads") :]
    for reader in READERS:
        assert f"`{reader.name}`" in table, reader.name


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_resolve(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (ROOT / target).exists(), f"{path}: {target}"


def test_the_python_example_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    scope: dict[str, object] = {}
    exec(block.replace("sample_runs/", f"{ROOT}/sample_runs/"), scope)


def test_the_readme_is_whole() -> None:
    headings = re.findall(r"^## (.+)$", README, flags=re.M)
    assert headings == [
        "Five minutes",
        "What it reads",
        "What it finds",
        "Choosing max_norm",
        "Recording a run",
        "Trying it out",
        "Stored gradients",
        "Proving clipping",
        "In CI",
        "Exit codes",
        "From Python",
        "JSON",
        "Sample runs",
        "Developing",
    ]
    assert len(re.findall(r"^```", README, flags=re.M)) % 2 == 0
    assert README.count("<!-- output: ") == len(generate._BLOCK.findall(README))


def test_an_empty_block_is_filled_and_nothing_behind_it_is_lost() -> None:
    text = "a\n<!-- output: gradclip --version -->\n```text\n```\n\n## b\n\n```\nc\n```\n"
    once = generate.readme(text)
    assert once.endswith("```\n\n## b\n\n```\nc\n```\n")
    assert "gradclip 0." in once
    assert generate.readme(once) == once
