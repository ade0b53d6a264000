"""The sentences and rows that the text and Markdown reports of `gradclip probe` share. Nothing here judges."""

from __future__ import annotations

import math
import shlex

from gradclip_cli.model.finding import Verdict
from gradclip_cli.model.probe import Probe, Twin
from gradclip_cli.wording import count, number

HEADER = ("max_norm", "outcome", "final loss", "worst update", "clipped", "ms/step")


def headline(probe: Probe) -> str:
    """What was trained, and how."""
    c = probe.conditions
    parts = [
        f"{probe.subject} ({count(probe.num_parameters, 'parameter')})",
        count(int(c["steps"]), "update") + (f" of {c['accumulate']} micro-batches" if c["accumulate"] != 1 else ""),
        f"{c['optimizer']} at {number(float(c['lr']))}",
        f"{c['dtype']} on {c['device']}" + (f", {c['world_size']} ranks ({c['parallel']})" if c["parallel"] else ""),
        *(["compiled"] if c["compile"] else []),
        f"seed {c['seed']}",
    ]
    return f"{', '.join(parts)}."


def planted(probe: Probe) -> str:
    """What was planted, "nothing" where nothing was."""
    return ", ".join(map(str, probe.planted)) or "nothing"


def name(twin: Twin) -> str:
    """The bound as it was asked for, and what it came to."""
    if math.isinf(twin.max_norm):
        return "none"
    value = number(twin.max_norm, 4)
    return f"suggested: {value}" if twin.label == "suggested" else value


def outcome(twin: Twin) -> str:
    """The verdict in a few words."""
    if twin.ended:
        return "given up"
    verdict = twin.analysis.verdict
    if verdict is Verdict.DIVERGED:
        return "diverged"
    if verdict is Verdict.SPIKED:
        return "spiked, back" if twin.recovered else "spiked, not back" if twin.recovered is False else "spiked at the end"
    return verdict.value


def row(twin: Twin) -> tuple[str, ...]:
    """The cells of a twin, under `HEADER`."""
    worst = f"{number(twin.worst_update)} at {twin.worst_step:,}" if twin.worst_step else "-"
    return name(twin), outcome(twin), number(twin.final_loss), worst, f"{twin.num_clipped:,}", number(1000 * twin.step_s)


def sightings(twin: Twin) -> list[tuple[str, str]]:
    """Each planted fault with what was found there."""
    return [(str(s.planted), ", ".join(f"{rule} at {step:,}" for rule, step in s.found) or "nothing found there") for s in twin.sightings]


def facts(twin: Twin) -> list[str]:
    """What else is to be said of it."""
    out = []
    if twin.num_dropped:
        out.append(f"{count(twin.num_dropped, 'batch').replace('batchs', 'batches')} dropped: the gradient was not finite")
    return [*out, *([twin.ended] if twin.ended else [])]


def next_commands(probe: Probe) -> list[str]:
    """Commands worth typing now."""
    if not probe.source.isprintable():
        return []
    source = shlex.quote(probe.source)
    only = [f"gradclip suggest-threshold {source}"] if len(probe.twins) == 1 else []
    return [f"gradclip analyze {source}", *only]
