"""A causal language model from a local Hugging Face directory, with a text file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gradclip_cli.errors import GradclipError
from gradclip_cli.probe.batch import Batch
from gradclip_cli.probe.subject import Subject, call_model, told_as_theirs

_CONTEXT, _BATCH = 256, 4
_LR = 5e-5
# What a short training reads of a text; tokenizing more would take longer than the training.
_MOST_BYTES = 4_000_000


def hugging_face_subject(directory: Path, text: Path, seed: int, rank: int) -> Subject:
    """The model and its tokenizer as they lie there, and windows of the text. No code of the directory is run, nothing is downloaded.

    Raises:
        GradclipError: transformers is missing, or a file is, or cannot be read.
    """
    if find_spec("transformers") is None:
        raise GradclipError("transformers is not installed here; --model hf: needs it", hint="pip install transformers")
    if not (directory / "config.json").is_file():
        raise GradclipError(f"{directory}: holds no config.json; expected a local Hugging Face model directory")
    try:
        with text.open("rb") as f:
            words = f.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as e:
        raise GradclipError(f"{text}: cannot be read ({e.strerror or e}); expected a text file", hint="--text FILE") from e
    with told_as_theirs(str(directory), "the model was loaded"):
        hub: Any = import_module("transformers")
        # What it says while loading is no news about the run.
        hub.logging.set_verbosity_error()
        hub.logging.disable_progress_bar()
        local: Any = {"local_files_only": True, "trust_remote_code": False}
        tokenizer: Any = hub.AutoTokenizer.from_pretrained(directory, **local)
        model: Any = hub.AutoModelForCausalLM.from_pretrained(directory, **local).float()
        tokens = torch.tensor(tokenizer(words, verbose=False)["input_ids"], dtype=torch.int64)
    context = min(_CONTEXT, int(getattr(model.config, "max_position_embeddings", _CONTEXT)))
    if words and not len(tokens):
        raise GradclipError(
            f"{directory}: its tokenizer makes no tokens of {text}; expected a tokenizer beside the model",
            hint="save it there: tokenizer.save_pretrained(DIR)",
        )
    if len(tokens) <= context:
        raise GradclipError(
            f"{text}: holds {len(tokens):,} tokens; expected more than the {context:,} of one row", hint="give a longer text"
        )
    model.train()
    return Subject(str(directory), model, _windows(tokens, context, seed + 1_000_003 * rank), call_model, lr=_LR)


def _windows(tokens: torch.Tensor, context: int, seed: int) -> Iterator[Batch]:
    chance = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(tokens) - context, (_BATCH, 1), generator=chance)
        ids = tokens[starts + torch.arange(context)]
        yield {"input_ids": ids, "labels": ids}
