"""The keys of the configuration, which are the flags of `gradclip check`: one row each, with what a value must be."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gradclip_cli.errors import UsageError
from gradclip_cli.model.finding import Severity
from gradclip_cli.model.run import CLIP_COEF, GRAD_NORM, LOSS, LOSS_SCALE, LR
from gradclip_cli.policy.config import Layer
from gradclip_cli.policy.policy import Known, Policy, matches

SERIES = (LOSS, GRAD_NORM, LR, LOSS_SCALE, CLIP_COEF)
STAGES = ("verify", "record", "probe")


class _Bad(Exception):
    """A value that a key cannot take: what was expected, perhaps a hint, and the element that is wrong where it is a list."""

    def __init__(self, expected: str, hint: str | None = None, element: object = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.hint = hint
        self.element = element


def _number(low: float, high: float, expected: str, *, exclusive: bool = False) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise _Bad(expected)
        if not low <= value <= high or (exclusive and value == low):
            raise _Bad(expected)
        return float(value)

    return parse


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _Bad("a whole number of at least 1")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Bad("true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _Bad("a text")
    return value


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _Bad("a path")
    return Path(value)


def _list(value: Any, expected: str) -> list[str]:
    """Texts of a list; a text may hold several with commas between them, as on the command line."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise _Bad(expected)
    return [part.strip() for v in values for part in v.split(",") if part.strip()]


_RULES = 'a list of rules, such as ["GC1", "always-clipping"]'


def _rules(value: Any) -> tuple[str, ...]:
    return tuple(_list(value, _RULES))


def _some_rules(value: Any) -> tuple[str, ...]:
    # With none selected every run would pass.
    if not (rules := _rules(value)):
        raise _Bad(f"{_RULES}, with one at least")
    return rules


def _series(value: Any) -> tuple[str, ...]:
    names = _list(value, f"a list of {', '.join(SERIES)}")
    for name in names:
        if name not in SERIES:
            raise _Bad(f"a list of {', '.join(SERIES)}", _near(name, SERIES), name)
    return tuple(dict.fromkeys(names))


def _severity(value: Any) -> Severity:
    if value not in ("error", "warning"):
        raise _Bad('"error" or "warning"')
    return Severity(value)


def _paths(value: Any) -> tuple[Path, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list):
        raise _Bad("a list of paths")
    return tuple(_path(v) for v in values)


def _stages(value: Any) -> tuple[tuple[str, ...], ...]:
    expected = 'a list of command lines of verify, record or probe, such as ["verify", "record --max-steps 200 train.py"]'
    if not isinstance(value, list):
        raise _Bad(expected)
    return tuple(_stage(v, expected) for v in value)


def _stage(value: Any, expected: str) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:
        raise _Bad(f"{expected}; a quotation is not closed", element=value) from None
    if not isinstance(words, list) or not all(isinstance(w, str) and "\0" not in w for w in words):
        raise _Bad(expected, element=value)
    if words[:1] == ["gradclip"]:
        words = words[1:]
    at = command_at(words)
    if at is None:
        raise _Bad(expected, "torchrun starts gradclip as a module: torchrun --nproc-per-node 8 -m gradclip_cli record train.py", value)
    if at == len(words) or words[at] not in STAGES:
        raise _Bad(expected, _near(words[at], STAGES) if words[at:] else None, value)
    return tuple(words)


def command_at(words: Sequence[str]) -> int | None:
    """Where gradclip's command stands in a command line of the preflight: first, or behind `torchrun ... -m gradclip_cli`, else None."""
    if not words or words[0] != "torchrun":
        return 0
    return next((i + 2 for i in range(1, len(words) - 1) if words[i] == "-m" and words[i + 1] == "gradclip_cli"), None)


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of the configuration file and the flag of the same name.

    Attributes:
        parse: The value as TOML or the command line gives it -> as `Policy` holds it; raises `_Bad`.
        meaning: One line for people.
    """

    key: str
    parse: Callable[[Any], Any]
    meaning: str

    @property
    def field(self) -> str:
        return self.key.replace("-", "_")


SETTINGS: tuple[Setting, ...] = (
    Setting("select", _some_rules, "rules whose findings count"),
    Setting("ignore", _rules, "rules whose findings do not"),
    Setting("fail-on", _severity, "the least severity that counts"),
    Setting("strict", _bool, "a check that could not judge fails"),
    Setting("require", _series, "series without which there is no verdict"),
    Setting("min-steps", _count, "fewest logged steps for a verdict"),
    Setting("max-clipped-fraction", _number(0, 1, "a number from 0 to 1"), "largest share of clipped steps"),
    Setting("max-exploding-per-1000", _number(0, 1000, "a number from 0 to 1000"), "most exploding steps"),
    Setting("max-norm", _number(0, math.inf, "a number above 0", exclusive=True), "the clipping bound of the runs"),
    Setting("baseline", _path, "run to compare with"),
    Setting("tolerance", _number(0, math.inf, "a number above 0", exclusive=True), "largest drift from the baseline"),
    Setting("loss", _text, "key of the loss"),
    Setting("grad-norm", _text, "key of the gradient norm"),
    Setting("lr", _text, "key of the learning rate"),
    Setting("step", _text, "key of the step counter"),
    Setting("runs", _paths, "runs to judge where none is given"),
    Setting("preflight", _stages, "what to run first"),
    Setting("timeout", _number(0, math.inf, "a number of seconds above 0", exclusive=True), "seconds for each part of the preflight"),
)

_PATHS = ("baseline", "runs")


def settle(layers: Sequence[Layer], rules: Sequence[Known]) -> Policy:
    """The policy of all layers, the later ones first; what none of them sets keeps its default.

    Raises:
        UsageError: An unknown key, with the nearest known one; a value that a key cannot take; a rule nobody knows.
    """
    known = {s.key: s for s in SETTINGS}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, raw in layer.values.items():
            if key not in known:
                spelled = key.replace("_", "-")
                raise UsageError(
                    f"{layer.origin}: unknown key {key!r}", hint=_near(spelled, [*known, "check"]) or f"the keys are {', '.join(known)}"
                )
            try:
                value = known[key].parse(raw)
                if key in ("select", "ignore"):
                    _known_rules(value, rules)
            except _Bad as e:
                found = f"is {_shown(raw)}" if e.element is None else f"holds {_shown(e.element)}"
                raise UsageError(f"{layer.origin}: {key} {found}; expected {e.expected}", hint=e.hint) from None
            values[known[key].field] = _placed(value, layer.folder) if key in _PATHS else value
            origins[key] = layer.origin
            if key == "preflight":
                values["folder"] = layer.folder
    return Policy(**values, origins=origins)


def in_force(policy: Policy) -> list[tuple[Setting, Any, str]]:
    """Every setting with its value and where that came from."""
    return [(s, getattr(policy, s.field), policy.origins.get(s.key, "default")) for s in SETTINGS]


def _placed(value: Any, folder: Path) -> Any:
    return tuple(folder / p for p in value) if isinstance(value, tuple) else folder / value


def _known_rules(tokens: Sequence[str], rules: Sequence[Known]) -> None:
    for token in tokens:
        if not any(matches(token, rule) for rule in rules):
            names = [n for rule in rules for n in (rule.id, rule.name)]
            raise _Bad("rule ids, their beginnings or names", _near(token, names) or "`gradclip explain` lists the rules", token)


def _near(word: str, names: Sequence[str]) -> str | None:
    lower = {n.lower(): n for n in names}
    near = get_close_matches(word.lower(), list(lower), n=1)
    return f"did you mean {lower[near[0]]!r}?" if near else None


def _shown(raw: Any) -> str:
    text = repr(raw)
    return text if len(text) <= 80 else f"{text[:79]}…"
