"""Keys people use, and keys that only look like them."""

import pytest

from gradclip_cli.model.run import CLIP_COEF, GRAD_NORM, LOSS, LOSS_SCALE, LR, NormStage
from gradclip_cli.readers import names
from gradclip_cli.readers.log import Wanted
from gradclip_cli.readers.numbers import parse


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        (
            LOSS,
            "loss|train/loss|lm loss|lm-loss|train_loss|training_loss|Loss/train|total_loss|trl|trainLoss|epoch_loss|train_loss_step|avg_train_loss",
        ),
        (
            GRAD_NORM,
            "grad_norm|grad norm|gnorm|total_grad_norm|gradient_norm|grad-norm|grdn|norm|train/grad_norm|optim/total_grad_norm|gradNorm",
        ),
        (LR, "lr|learning_rate|learning-rate|learning rate|train_lr|x/lr0|lr-AdamW/pg1|actor/lr|base_lr"),
        (LOSS_SCALE, "loss_scale|loss scale|loss-scale|grad_scale"),
        (CLIP_COEF, "clip_coef|train/clip_coef|clip_coefficient|grad_clip_coef"),
        ("step", "step|global_step|Step|_step|trainer/global_step|iter|iteration|num_updates|current_steps|global_step/max_steps|epoch"),
    ],
)
def test_known_names(role: str, keys: str) -> None:
    for key in keys.split("|"):
        assert names.rank(role, key) is not None, key


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        (LOSS, "val_loss|eval/loss|tel|validation loss|test_loss|loss_scale|train/box_loss|lm loss vs samples|run - lm_loss__MIN|lossless"),
        (GRAD_NORM, "param_norm|weight_norm|layer_norm|grad-norm vs samples|grad_norm/blocks.0.weight|gradient_checkpointing"),
        (LR, "lrm|learning|color"),
    ],
)
def test_look_alikes(role: str, keys: str) -> None:
    for key in keys.split("|"):
        assert names.rank(role, key) is None, key


def test_the_step_loss_wins_over_the_epoch_loss_and_more_points_win_within_a_class() -> None:
    assert names.candidates(LOSS, {"train_loss_epoch": 10, "train_loss_step": 5, "val_loss": 100}) == ["train_loss_step"]
    assert names.candidates(LOSS, {"train_loss": 1, "loss": 50}) == ["loss", "train_loss"]
    assert names.candidates(GRAD_NORM, {"grad_norm_avg": 0, "grad_norm_val": 30}) == ["grad_norm_val"]


def test_stage_and_tensor_of_a_key() -> None:
    assert names.stage_of("grad_norm_clipped") is NormStage.POST_CLIP
    assert names.stage_of("unclipped_grad_norm") is NormStage.PRE_CLIP
    assert names.stage_of("grad_norm") is NormStage.UNKNOWN
    assert names.tensor_of("grad_norm/blocks.0.weight") == "blocks.0.weight"
    assert names.tensor_of("grad_norm/total") is None


def test_worth_reading() -> None:
    assert names.worth_reading("my_thing", Wanted(loss="my_thing"))
    assert not names.worth_reading("gpu_memory", Wanted())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5),
        ("nan.0", "nan"),
        ("-Infinity", "-inf"),
        ("1,234.5", 1234.5),
        ("25K", 25000),
        ("10/438", 10),
        ("'0.5'", 0.5),
        ("1.#QNAN", "nan"),
        ("33%", 0.33),
    ],
)
def test_numbers(text: str, value: object) -> None:
    number = parse(text)
    assert number is not None
    assert repr(number.value) == repr(float(value))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "abc", "1-2", "0x10", "1 2", "nano", "infer", "1,2", "9" * 100])
def test_no_numbers(text: str) -> None:
    assert parse(text) is None
