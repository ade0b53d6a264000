"""The report of `gradclip replay` for programs: `gradclip.replay/1`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from gradclip_cli.model.replay import Alternative, Clip, NonfiniteTensor, Replay, ReplayStep
from gradclip_cli.report.json import json_finding, json_number, json_text

SCHEMA = "gradclip.replay/1"


def render_replay_json(replay: Replay) -> str:
    """Strict JSON in plain ASCII, the keys always in the same order. Numbers that are not finite are the strings "nan", "inf", "-inf".

    `coefficient`, `clipped_norm`, `cosine` and `update_norm` are those of the first bound, null where there is none; `by_max_norm` has them
    for each.
    """
    from gradclip_cli import __version__

    optimizer = replay.optimizer
    document = {
        "schema": SCHEMA,
        "gradclip_version": __version__,
        "source": json_text(replay.source),
        "format": replay.format,
        "dtypes": list(replay.dtypes),
        "partial": json_text(replay.partial) or None,
        "world_size": replay.world_size,
        "norm_type": json_number(replay.norm_type),
        "max_norms": [json_number(m) for m in replay.max_norms],
        "clip_values": [json_number(v) for v in replay.clip_values],
        "optimizer": None
        if optimizer is None
        else {"name": optimizer.name, "arguments": {key: _argument(value) for key, value in optimizer.arguments.items()}},
        "steps": [_step(s) for s in replay.steps],
        "findings": [json_finding(f) for f in replay.findings],
        "notes": [json_text(n) for n in replay.notes],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _argument(value: object) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return json_text(value) if isinstance(value, str) else value
    if isinstance(value, (int, float)):
        return json_number(value)
    return json_text(repr(value))


def _step(step: ReplayStep) -> dict[str, Any]:
    first = step.clips[0] if step.clips else None
    document: dict[str, Any] = {
        "step": step.step,
        "source": json_text(step.source),
        "total_norm": json_number(step.total_norm),
        "coefficient": None if first is None else json_number(first.coefficient),
        "clipped_norm": None if first is None else json_number(first.clipped_norm),
        "cosine": None if first is None else json_number(first.cosine),
        "top_tensors": [{"name": json_text(t.name), "share": json_number(t.share), "norm": json_number(t.norm)} for t in step.top_tensors],
    }
    if step.update_norm is not None:
        if first is not None and first.update_norm is not None:
            document["update_norm"] = json_number(first.update_norm)
        document["update_norm_unclipped"] = json_number(step.update_norm)
    document |= {
        "num_tensors": len(step.tensors),
        "num_elements": step.numel,
        "stage": step.stage.value,
        "claimed_max_norm": None if step.claimed_max_norm is None else json_number(step.claimed_max_norm),
        "claimed_total_norm": None if step.claimed_total_norm is None else json_number(step.claimed_total_norm),
        "loss_scale": json_number(step.loss_scale),
        "by_max_norm": [_clip(c) for c in step.clips],
        "alternatives": [_alternative(a) for a in step.alternatives],
        "nonfinite_tensors": [_nonfinite(t) for t in step.nonfinite],
    }
    if step.histogram is not None:
        used = np.flatnonzero(step.histogram[1:]) + 1
        bins = [{"from": 2.0 ** (k - 1023), "to": 2.0 * 2.0 ** (k - 1023), "count": int(step.histogram[k])} for k in used.tolist()]
        document["histogram"] = {"zero": int(step.histogram[0]), "bins": [b | {"to": json_number(b["to"])} for b in bins]}
    return document


def _clip(clip: Clip) -> dict[str, Any]:
    document = {
        "max_norm": json_number(clip.max_norm),
        "coefficient": json_number(clip.coefficient),
        "clipped_norm": json_number(clip.clipped_norm),
        "cosine": json_number(clip.cosine),
    }
    return document if clip.update_norm is None else document | {"update_norm": json_number(clip.update_norm)}


def _alternative(other: Alternative) -> dict[str, Any]:
    return {
        "how": other.how,
        "bound": json_number(other.bound),
        "clipped_norm": json_number(other.clipped_norm),
        "cosine": json_number(other.cosine),
        "angle_degrees": json_number(other.angle_degrees),
        "changed_fraction": json_number(other.changed_fraction),
        "lowest_coefficient": None if other.lowest_coefficient is None else json_number(other.lowest_coefficient),
    }


def _nonfinite(tensor: NonfiniteTensor) -> dict[str, Any]:
    return {
        "name": json_text(tensor.name),
        "num_elements": tensor.numel,
        "num_nan": tensor.num_nan,
        "num_inf": tensor.num_inf,
        "num_neg_inf": tensor.num_neg_inf,
        "positions": [list(p) for p in tensor.positions],
    }
