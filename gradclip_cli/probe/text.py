"""The text that presets are trained on: made here, sentence by sentence, always the same."""

from __future__ import annotations

import random
from functools import cache

_LISTS = {
    "article": "the|a|this|that|every|another",
    "adjective": "old|quiet|bright|heavy|small|broken|early|distant|green|narrow|patient|wooden",
    "noun": "sailor|lamp|harbour|garden|teacher|river|market|window|letter|bridge|carpenter|field|engine|valley",
    "verb": "carried|watched|followed|mended|reached|painted|counted|remembered",
    "place": "near|behind|under|above|beside|beyond",
    "time": "in the morning|at night|after the storm|before the winter|every day|for a long while",
}
_WORDS = {name: words.split("|") for name, words in _LISTS.items()}
_SHAPES = (
    "article adjective noun verb article noun",
    "article noun verb article adjective noun place article noun",
    "time article noun verb article noun",
    "article noun place article adjective noun verb article noun time",
)
_NUM_SENTENCES = 6000


@cache
def made_text() -> bytes:
    """Some 300 kB of plain English sentences, ASCII."""
    rng = random.Random(20)
    sentences = (" ".join(rng.choice(_WORDS[word]) for word in rng.choice(_SHAPES).split()) for _ in range(_NUM_SENTENCES))
    return "".join(f"{s.capitalize()}.\n" for s in sentences).encode("ascii")
