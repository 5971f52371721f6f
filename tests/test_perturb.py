"""Perturbed corpora: tokens, the corpora of a config, and the extraction."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from helpers import tiny
from helpers.refused import refused
from hypothesis import given
from hypothesis import strategies as st

from layerwise.activations.store import Activations
from layerwise.config import Config
from layerwise.config.corpora import Perturb
from layerwise.corpora.views import perturb, randomise_tokens, repeat_tokens, vocabulary_of

SPECIAL = frozenset({0, 1})
VOCABULARY = tuple(range(2, 50))


def done(ids: list[int], prompt: str = "p", **how: Any) -> list[int]:
    return perturb(ids, Perturb(**how), special=SPECIAL, vocabulary=VOCABULARY, prompt=prompt)


tokens = st.lists(st.integers(0, 999), max_size=40)


@given(tokens, st.floats(0, 1), st.floats(0, 1), st.integers())
def test_a_larger_share_replaces_the_same_tokens_and_further_ones(
    ids: list[int], p: float, q: float, seed: int
) -> None:
    few, many = (repeat_tokens(ids, x, seed) for x in sorted((p, q)))
    changed = {i for i, (a, b) in enumerate(zip(ids, few, strict=True)) if a != b}
    assert all(many[i] == few[i] for i in changed)
    assert len({few[i] for i in changed}) <= 1
    few, many = (randomise_tokens(ids, x, range(50), seed) for x in sorted((p, q)))
    assert all(m == f for i, f, m in zip(ids, few, many, strict=True) if f != i)


def test_nothing_at_zero_and_one_token_at_one() -> None:
    ids = [1, *range(5, 25), 0]
    assert done(ids, repetition=0.0) == done(ids, randomness=0.0) == ids
    assert len(set(done(ids, repetition=1.0)[1:-1])) == 1
    assert done(ids, "a", randomness=1.0) != done(ids, "b", randomness=1.0)


def test_length_counts_no_special_token_and_never_invents_one() -> None:
    ids = [1, *range(5, 25), 0]
    assert done(ids, length=4) == [1, 5, 6, 7, 8, 0]
    assert len(done(ids, length=4, randomness=1.0)) == 6
    with refused("too_few"):
        done(ids, length=21)


def test_the_vocabulary_is_what_text_can_give() -> None:
    tokenizer = SimpleNamespace(
        added_tokens_decoder={3: SimpleNamespace(special=True), 4: SimpleNamespace(special=False)},
        all_special_ids=[0],
        get_vocab=lambda: {c: i for i, c in enumerate("abcdefgh")},
    )
    assert vocabulary_of(tokenizer, 7) == ([1, 2, 4, 5, 6], frozenset({0, 3}))


# The config


def test_a_list_makes_a_corpus_of_each_value() -> None:
    settings = {"repetition": [0, 0.5], "length": [4, 8]}
    entry = {"source": {"hub": "owner/news"}, "views": {"n": 0}, "perturb": settings}
    study = {"kind": "curves", "corpora": ["rep"]}
    made = Config.of({"corpora": {"rep": entry}, "studies": {"s": study}})
    names = [f"rep repetition {p} length {n}" for p in ("0", "0.5") for n in (4, 8)]
    assert list(made.corpora) == names
    assert made.studies["s"].corpora == tuple(names)
    labels = [{"repetition": p, "length": n} for p in (0, 0.5) for n in (4, 8)]
    assert made.labels() == dict(zip(names, labels, strict=True))
    assert Config.of(made.plain()) == made, "a snapshot is read as it was written"


# Real states


def test_the_extraction_perturbs_each_models_own_tokens(tmp_path: Path) -> None:
    loaded = tiny.loaded("gpt2", tmp_path / "gpt2")
    texts = tiny.texts(6, shortest=8)
    given: list[torch.Tensor] = []
    loaded.model.wte.register_forward_hook(lambda _, ids, __: given.append(ids[0]))
    seen = {}
    for p in (0.0, 1.0):
        how = Perturb(repetition=p, length=5)
        path = tiny.extracted(loaded, tmp_path / f"{p}.h5", texts, perturb=how)
        with Activations(path) as file:
            assert "repetition" in file.attributes["perturb"]
        seen[p] = given[-1]
    assert seen[0.0].shape == seen[1.0].shape == (6, 5)
    assert (seen[1.0] == seen[1.0][:, :1]).all(), "one token, whatever its place"
    assert not (seen[0.0] == seen[0.0][:, :1]).all(dim=1).any()
