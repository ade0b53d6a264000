"""`make bench`: every benchmark, or those named. All figures of a table come from interleaved rounds of one run.

python -m tests.bench [NAME...]
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

from tests import bench


def main() -> None:
    names = [m.name for m in pkgutil.iter_modules(bench.__path__) if m.name.startswith("bench_")]
    asked = [f"bench_{n.removeprefix('bench_')}" for n in sys.argv[1:]]
    if unknown := set(asked) - set(names):
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(n.removeprefix('bench_') for n in names)}")
    for name in asked or names:
        print(f"\n== {name.removeprefix('bench_')}", flush=True)
        importlib.import_module(f"tests.bench.{name}").main()


if __name__ == "__main__":
    main()
