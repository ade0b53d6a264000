"""Finding and reading the configuration: gradclip.toml, or `[tool.gradclip]` in pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradclip_cli.errors import UsageError

_OWN, _SHARED = "gradclip.toml", "pyproject.toml"
_LARGEST_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class Layer:
    """Values from one place, as they were written.

    Attributes:
        origin: The place, for people.
        folder: What relative paths in it are relative to.
    """

    origin: str
    values: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()


def find_config(start: Path) -> Path | None:
    """The nearest configuration from a directory upward to the root of its repository; outside of one, in that directory alone.

    Further up a file may be anybody's, and a configuration can name commands to run. In one
    directory gradclip.toml is taken before pyproject.toml, and a pyproject.toml that does not
    mention gradclip is passed over. The path is relative to the current directory.
    """
    above = [start, *start.parents]
    root = next((i for i, folder in enumerate(above) if (folder / ".git").exists()), 0)
    for folder in (Path(os.path.relpath(f)) for f in above[: root + 1]):
        if (folder / _OWN).is_file():
            return folder / _OWN
        if (folder / _SHARED).is_file() and "gradclip" in _tool(folder / _SHARED):
            return folder / _SHARED
    return None


def load_config(path: Path) -> list[Layer]:
    """What a configuration file sets: the keys beside `check` first, then those in its table `check`.

    Raises:
        UsageError: No such file, no TOML, or no table where one must be.
    """
    if path.name == _SHARED:
        table, prefix = _tool(path).get("gradclip"), "tool.gradclip"
        if table is None:
            raise UsageError(f"{path}: no table [tool.gradclip]", hint="the settings of gradclip stand in [tool.gradclip]")
    else:
        table, prefix = _toml(path), ""
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {prefix} is not a table", hint=f"begin it with [{prefix}]")
    check = table.get("check", {})
    inner = f"{prefix}.check".lstrip(".")
    if not isinstance(check, dict):
        raise UsageError(f"{path}: {inner} is not a table", hint=f"begin it with [{inner}]")
    outer = {key: value for key, value in table.items() if key != "check"}
    if "tool" in outer and not prefix:
        raise UsageError(f"{path}: unknown key 'tool'", hint=f"in {_OWN} the settings stand at the top or in [check]")
    if twice := sorted(outer.keys() & check.keys()):
        raise UsageError(f"{path}: {twice[0]} is set twice, in [{inner}] and outside of it", hint="keep one of them")
    layers = ((prefix, outer), (inner, check))
    return [Layer(f"{path} [{name}]" if name else str(path), values, path.parent) for name, values in layers if values]


def _tool(path: Path) -> Mapping[str, Any]:
    tool = _toml(path).get("tool", {})
    return tool if isinstance(tool, dict) else {}


def _toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise UsageError(f"{path}: more than {_LARGEST_BYTES:,} bytes; expected a configuration in TOML")
        return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; expected a configuration in TOML") from None
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}; expected a configuration in TOML") from None
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: byte {e.start} is no UTF-8; expected TOML") from None
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise UsageError(f"{path}: not valid TOML: {e}") from None
