"""Write the generated parts of the documentation: output blocks in README.md, and docs/rules.md.

    python -m docs.generate           write them
    python -m docs.generate --check   exit 1 and say which is stale

A block in README.md is a comment that names a command and the fenced block behind it, which holds what that command prints:

    <!-- output: gradclip explain GC101 -->

The table of formats stands between `<!-- formats -->` and `<!-- end of formats -->`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from gradclip_cli.readers import READERS
from gradclip_cli.rules import PAGES

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- output: (?P<command>gradclip [^\n]*?) -->\n```\w*\n)(?P<shown>(?:(?!```)[^\n]*\n)*)(```)")
_FORMATS = re.compile(r"(<!-- formats -->\n)((?:\|[^\n]*\n)*)(<!-- end of formats -->)")


def output_of(command: str) -> str:
    """What a command prints, as a reader of the README would see it in a terminal of 80 columns without colour."""
    env = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "TERM": "dumb"}
    argv = [sys.executable, "-m", "gradclip_cli", *shlex.split(command)[1:]]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, encoding="utf-8", timeout=120)
    text = done.stdout or done.stderr
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def formats_table() -> str:
    """The formats in the order in which they are asked."""
    rows = []
    for r in READERS:
        # A bar would end the cell; GitHub takes the backslash away, also inside a code span.
        summary = r.summary.replace("|", "\\|")
        rows.append(f"| `{r.name}` | {summary} |")
    return "\n".join(["| format | what it reads |", "|---|---|", *rows])


def readme(text: str) -> str:
    """README.md with every output block and the table of formats made anew."""
    text = _BLOCK.sub(lambda m: m[1] + output_of(m["command"]) + "\n" + m[4], text)
    return _FORMATS.sub(lambda m: f"{m[1]}{formats_table()}\n{m[3]}", text)


def rules_page() -> str:
    """docs/rules.md: the explain pages, in the order of the table."""
    parts = ["# Rules", "", "What `gradclip explain ID` prints, for all rules. Written by `make docs`; edit the docstrings instead.", ""]
    for r in PAGES:
        body = re.sub(r"^(What it finds|Why it matters|How it decides|What to do|When it is wrong):", r"**\1:**", r.page, flags=re.M)
        parts += [f"## {r.id} {r.name}", "", f"Severity: {r.severity.value}.", "", body, ""]
    return "\n".join(parts)


def stale() -> list[str]:
    """The generated files that are not what the code says now."""
    out = []
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if readme(text) != text:
        out.append("README.md")
    page = ROOT / "docs" / "rules.md"
    if not page.exists() or page.read_text(encoding="utf-8") != rules_page():
        out.append("docs/rules.md")
    return out


def main() -> int:
    """Write, or check."""
    if "--check" in sys.argv[1:]:
        names = stale()
        if names:
            print(f"stale: {', '.join(names)}; `make docs` writes them anew", file=sys.stderr)
        return 1 if names else 0
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs" / "rules.md").write_text(rules_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
