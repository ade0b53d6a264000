"""Judge the training programs of this folder and print the ones with a wrong answer: `python -m tests.loops [NAME...]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.loops import VERDICTS, judge, representative


def main() -> int:
    """Exit status 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.loops", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs, with or without .py; default: all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--some", action="store_true", help="only those the test suite takes by default")
    args = parser.parse_args()
    names = [f"{name.removesuffix('.py')}.py" for name in args.names] or (representative() if args.some else sorted(VERDICTS))
    unknown = sorted(set(names) - VERDICTS.keys())
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as tmp, ThreadPoolExecutor(args.jobs) as pool:
        num_wrong = 0
        for name, wrong in zip(names, pool.map(lambda name: judge(name, Path(tmp)), names), strict=True):
            if wrong:
                num_wrong += 1
                print(f"wrong  {name}: {wrong}", flush=True)
    print(f"{len(names) - num_wrong} passed, {num_wrong} failed")
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
