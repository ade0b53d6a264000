"""Which logged key is the loss, the gradient norm, the learning rate, the step.

A key is compared as its lower-case words joined by `_` ("train/lm loss" -> "train_lm_loss"). Each role has
classes of patterns; the first class that has a key wins, and within a class the key with the most points.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

from gradclip_cli.model.run import CLIP_COEF, GRAD_NORM, LOSS, LOSS_SCALE, LR, MAX_NORM, NormStage
from gradclip_cli.readers.log import Wanted

_SEPARATORS = re.compile(r"[\s\-./:_|@]+")
_UNIT = re.compile(r"[(\[][^)\]]*[)\]]$")
# The camel-case bounds in `trainLoss`, `gradNorm`.
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")

_EVALUATION = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev", "tel", "holdout"))
SPLIT_KEYS = frozenset(["mode", "phase", "split", "stage", "subset", "type", "_type"])
"""Keys whose text says whether a record is of the training or of an evaluation."""
# Twins and derived values that repeat or smooth another key.
_DERIVED = re.compile(r"__(min|max)$|\bvs[ _]samples$|_(best|min|max|std|var|delta|diff|ratio|weight|coef|coeff)$", re.I)

_TRAIN = r"(?:train(?:ing|er)?|metrics|losses|scalars?|running|pretrain|sft)_"
_LOSS = r"(?:total_|lm_|ce_|nll_|cross_entropy_|xent_|mlm_|causal_lm_|language_model_|global_avg_|global_|mean_|avg_|average_)*loss"
_GRAD = r"(?:grads?|gradients?|g)"

_CLASSES: Mapping[str, tuple[re.Pattern[str], ...]] = {
    LOSS: (
        re.compile(rf"(?:{_TRAIN})?(?:total_|lm_|global_avg_)?loss|loss_(?:train|training|total|train_total)|trl|train_lm_loss"),
        re.compile(rf"(?:{_TRAIN})?{_LOSS}_(?:step|batch|iter)|(?:avg|mean)_train(?:ing)?_loss"),
        re.compile(rf"(?:{_TRAIN})?{_LOSS}(?:_(?:avg|mean|value|smooth|so_far|now|cur|current))*|loss_(?:avg|mean|value)s?"),
        re.compile(rf"(?:{_TRAIN})?(?:epoch_)?{_LOSS}(?:_epoch)?"),
        re.compile(r"(?:\w+_)?(?:total|lm|train)_loss(?:_step)?|\w+_loss_(?:train|total|step)"),
        re.compile(r"(?:actor|policy|model|generator|agent|learner|optim|optimizer|algo|stats)_(?:pg_)?loss"),
    ),
    GRAD_NORM: (
        re.compile(
            rf"(?:{_TRAIN}|optim_|optimizer_)?(?:(?:total|global|raw|unclipped|pre_clip|preclip)_)*"
            rf"{_GRAD}_?(?:l?2(?:_0)?_)?norm(?:_(?:total|global|pre_clip|preclip|before_clip(?:ping)?|raw|unclipped))?"
        ),
        re.compile(r"gnorm|grdn|gradnorm|grad_2(?:_0)?_norm_total|(?:train_)?(?:total|global)_norm|l2_norm_grad_global"),
        re.compile(rf"{_GRAD}_?(?:l?2_)?norm_(?:avg|mean|val|value|step|cur|now|post_clip|clipped|after_clip(?:ping)?)"),
        re.compile(rf"(?:clipped|post_clip)_{_GRAD}_?norm|norm|(?:train_)?norm_{_GRAD}"),
        re.compile(rf"(?:actor|policy|model|generator|agent|learner|stats)_{_GRAD}_?norm"),
        re.compile(rf"\w+_{_GRAD}_?norm|\w*gnorm"),
    ),
    LR: (
        re.compile(rf"(?:{_TRAIN}|optim_|optimizer_|actor_|schedule_)?(?:lr|learning_?rate)(?:_(?:0|abs|group_?0|pg_?1))?"),
        re.compile(r"lr0|(?:\w+_)?lr_?0|lr_\w+|(?:base|current|cur|mean|avg)_(?:lr|learning_rate)"),
        re.compile(r"\w+_(?:lr|learning_rate)|\w+_lr0"),
    ),
    LOSS_SCALE: (re.compile(r"(?:\w+_)?(?:loss_?scale|grad_?scale|scaler_scale|amp_scale|fp16_scale|scale_factor)|loss_scaling"),),
    CLIP_COEF: (re.compile(r"(?:\w+_)?(?:clip_coef(?:f|ficient)?|grad_clip_coef|clipping_coef(?:ficient)?)"),),
    MAX_NORM: (
        # As a schedule is logged: `max_grad_norm` may as well be the largest norm of some steps.
        re.compile(r"(?:train_|clip(?:ping)?_)?max_norm|(?:train_)?(?:grad(?:ient)?_)?clip_val"),
        re.compile(r"(?:\w+_)?(?:max_(?:grad_|gradient_)?norm|clip_norm|clip_grad(?:_norm)?|grad(?:ient)?_clip(?:ping)?(?:_val|_norm)?)"),
    ),
    "step": (
        re.compile(r"step|global_step|(?:train|trainer|training)_(?:global_)?step|global_step_max_steps"),
        re.compile(r"iter|iteration|iterations|num_updates|update_num|current_steps?|steps|timestep|train_iter"),
        re.compile(r"updates?|it|batch|batches|batch_idx|num_batches|step_idx|global_iter"),
        re.compile(r"epochs?|epoch_num"),
    ),
}

_WORST_FIRST = {role: tuple(enumerate(patterns))[::-1] for role, patterns in _CLASSES.items()}

# Columns beside a lone loss that tell it from other people's losses.
_TRAINING_WORDS = re.compile(
    r"(?:^|_)(?:epochs?|lr|learning_rate|acc|accuracy|val_loss|valid_loss|eval_loss|perplexity|ppl|tokens|grad)(?:_|$)"
)

_TENSOR = re.compile(
    r"^(?:train/|optim/)?(?:grad_norms?|gradient_norms?|gradnorm|grad_2(?:\.0)?_norm|l2_norm/grad|grad_l2_norm|gradients?/norm)[/.](?P<tensor>.+)$",
    re.I,
)
_AGGREGATE = frozenset(("total", "global", "all", "overall", "mean", "avg", "max", "min"))
_POST = re.compile(r"(?:^|_)(?:clipped|post_?clip(?:ped|ping)?|after_?clip(?:ping)?)(?:_|$)")
_PRE = re.compile(r"(?:^|_)(?:unclipped|raw|pre_?clip(?:ped|ping)?|before_?clip(?:ping)?|no_?clip)(?:_|$)")


@lru_cache(maxsize=1 << 18)
def words(key: str) -> str:
    """The lower-case words of a key joined by `_`, a unit in brackets at the end left out."""
    # W&B's chart export names a column "<run name> - <key>".
    key = key.rsplit(" - ", 1)[-1].strip().strip("\"'")
    return _SEPARATORS.sub("_", _CAMEL.sub("_", _UNIT.sub("", key)).lower()).strip("_")


@lru_cache(maxsize=1 << 18)
def tensor_of(key: str) -> str | None:
    """The tensor whose norm a key holds ("grad_norm/blocks.0.weight" -> "blocks.0.weight"), or None."""
    m = _TENSOR.match(key.strip())
    return None if m is None or m["tensor"].lower() in _AGGREGATE else m["tensor"]


def rank(role: str, key: str) -> int | None:
    """How well a key fits a role: 0 is best, None is not at all."""
    return _ranks(key).get(role)


@lru_cache(maxsize=1 << 18)
def _ranks(key: str) -> dict[str, int]:
    """All roles that a key fits, mostly none."""
    if len(key) > 300:
        return {}
    name = words(key)
    # The worst first: of several classes the best stays.
    found = {role: i for role, patterns in _WORST_FIRST.items() for i, pattern in patterns if pattern.fullmatch(name)}
    if not found:
        return found
    if _DERIVED.search(key):
        found = {role: i for role, i in found.items() if role in ("step", CLIP_COEF)}
    if not _EVALUATION.isdisjoint(name.split("_")):
        found.pop(LOSS, None)
        # `grad_norm_val` is a value; `loss_val` is as often the validation loss.
        if not name.endswith("_val"):
            found.pop(GRAD_NORM, None)
    if tensor_of(key):
        found.pop(GRAD_NORM, None)
    return found


def candidates(role: str, num_points: Mapping[str, int]) -> list[str]:
    """The keys of the best class that has any, the one with the most points first.

    Args:
        num_points: Key -> how many (finite) values it has; a key with none is the last resort.
    """
    ranked = [(r, num_points[k] == 0, -num_points[k], i, k) for i, k in enumerate(num_points) if (r := rank(role, k)) is not None]
    if not ranked:
        return []
    best = min((empty, r) for r, empty, *_ in ranked)
    return [k for r, empty, _, _, k in sorted(ranked) if (empty, r) == best]


def stage_of(key: str) -> NormStage:
    """What the name of a norm says about its stage."""
    name = words(key)
    if _POST.search(name):
        return NormStage.POST_CLIP
    return NormStage.PRE_CLIP if _PRE.search(name) else NormStage.UNKNOWN


def is_evaluation(key: str) -> bool:
    """Whether a key names something measured in validation or testing."""
    return not _EVALUATION.isdisjoint(words(key).split("_"))


def is_loss_like(key: str) -> bool:
    """Whether a key names some training loss, if only a part of it (`train/box_loss`)."""
    parts = words(key).split("_")
    return not _DERIVED.search(key) and any(p.endswith("loss") or p == "losses" for p in parts) and not is_evaluation(key)


def is_norm_like(key: str) -> bool:
    """Whether a key names some gradient norm."""
    parts = words(key).split("_")
    return any("norm" in p for p in parts) and any(p.startswith("grad") or p in ("g", "gnorm") for p in parts)


def worth_reading(key: str, wanted: Wanted) -> bool:
    """Whether a column may be asked for: what a reader of wide tables may leave out otherwise."""
    if key in (wanted.loss, wanted.grad_norm, wanted.lr, wanted.step):
        return True
    return bool(_ranks(key)) or tensor_of(key) is not None or is_loss_like(key) or is_norm_like(key)


def to_read(keys: Sequence[str], wanted: Wanted, most: int = 1000) -> list[str]:
    """The columns of a table to read: those someone may ask for.

    All keys (some `most` of them) where neither a loss nor a norm is among them or a wanted key is missing,
    so that the error can name what is there.
    """
    asked = {words(k) for k in (wanted.loss, wanted.grad_norm, wanted.lr, wanted.step) if k is not None}
    main = {words(k) for k in (wanted.loss, wanted.grad_norm) if k is not None}
    worth = [k for k in keys if worth_reading(k, wanted) or words(k) in asked]
    if asked <= {words(k) for k in worth} and any(is_evidence(k) or words(k) in main for k in worth):
        if not any(rank(role, k) is not None for k in worth for role in ("step", LR, GRAD_NORM)):
            # Nobody will ask for it, but it tells that this is a training (see `keys.check_credible`).
            worth += [k for k in keys if k not in worth and speaks_of_training(k)][:1]
        return worth
    first = set(worth)
    return list(keys) if len(keys) <= most else [*worth, *[k for k in keys if k not in first][: max(0, most - len(worth))]]


def speaks_of_training(key: str) -> bool:
    """Whether a column beside a lone loss tells that it is of a training."""
    return len(key) <= 300 and _TRAINING_WORDS.search(words(key)) is not None


def is_evidence(key: str) -> bool:
    """Whether a column holds a loss or a gradient norm, rather than a step or a learning rate."""
    return rank(LOSS, key) is not None or rank(GRAD_NORM, key) is not None or is_loss_like(key) or is_norm_like(key)


def marks_evaluation(text: str) -> bool:
    """Whether a split (see `SPLIT_KEYS`) is of an evaluation: "val", "eval_epoch"."""
    parts = frozenset(words(text).split("_"))
    return not parts.isdisjoint(_EVALUATION) and "train" not in parts


def nearest(key: str, keys: Iterable[str]) -> list[str]:
    """The keys that look most like a wanted one, for a hint."""
    by_words = {words(k): k for k in keys}
    return [by_words[m] for m in get_close_matches(words(key), list(by_words), n=3, cutoff=0.5)]
