"""States of another program in place of a model: the same values; what is not there is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import tiny
from helpers.kept_states import states_of
from helpers.refused import refused
from safetensors.torch import save_file

import layerwise as lw
from layerwise.config.models import Model, StatesSource
from layerwise.errors import Code
from layerwise.export import Recipe, export
from layerwise.models.load import LoadedModel
from layerwise.models.opening import open_model
from layerwise.models.source import identity

TEXTS = tiny.texts(30, seed=5)
LABELS = ["long" if len(text) > 90 else "short" for text in TEXTS]
WAYS = {"tokens": ["all", "drop_first"], "labels": LABELS}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny.loaded("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def tokens(llama: LoadedModel) -> list[np.ndarray]:
    """States of each text's tokens, shape (layers, T, D)."""
    found = states_of(llama, llama.texts.prompts(TEXTS)[0])
    return [np.stack([found[layer, "block"][n] for layer in range(4)]) for n in range(len(TEXTS))]


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    keys = ["metric", "tokens", "layer"]
    one, other = (table.sort_values(keys).reset_index(drop=True) for table in (one, other))
    columns = [*keys, "value", "n", "low", "high"]
    pd.testing.assert_frame_equal(one[columns], other[columns], rtol=1e-4, atol=1e-5)


def test_states_give_the_values_of_their_model(
    llama: LoadedModel, tokens: list[np.ndarray]
) -> None:
    reader = llama.texts.tokenizer
    whole = lw.analyse(llama.model, TEXTS, reader, **WAYS)
    # The model's probe reads its states through the final norm, which states do not have.
    whole = whole[whole["metric"] != "linear_probe"]
    found = lw.analyse(tokens, TEXTS, **WAYS)
    same(found[found["metric"] != "linear_probe"], whole)
    vectors = np.stack([one.mean(axis=1) for one in tokens], axis=1)
    of_texts = lw.analyse(vectors, TEXTS, labels=LABELS)
    assert not {"prompt_entropy", "curvature", "largest_norm"} & set(of_texts["metric"])
    usual = found[found["metric"].isin(of_texts["metric"]) & (found["tokens"] == "all")]
    same(of_texts, usual)
    chosen = (lw.choose(states, TEXTS, LABELS, tokens="all") for states in (tokens, vectors))
    one, other = (choice.table.round(6) for choice in chosen)
    pd.testing.assert_frame_equal(one, other)


def test_states_of_one_hash_have_one_shape() -> None:
    numbers = np.arange(24.0)
    shapes = [(2, 3, 4), (2, 4, 3), (3, 2, 4)]
    hashes = [lw.States([numbers.reshape(shape)], ["a fox"]).sha256() for shape in shapes]
    assert len({*hashes, lw.States([numbers.reshape(2, 3, 4)], ["a dog"]).sha256()}) == 3


def write(path: Path, states: Any, texts: Any, offsets: Any = None) -> Path:
    parts = {"states": states} | ({} if offsets is None else {"offsets": offsets})
    if path.suffix == ".safetensors":
        tensors = {name: torch.as_tensor(part) for name, part in parts.items()}
        save_file(tensors, path, metadata={"texts": json.dumps(texts)})
    else:
        with h5py.File(path, "w") as file:
            for name, part in (parts | {"texts": texts}).items():
                file[name] = part
    return path


@pytest.mark.parametrize("ending", ["h5", "safetensors"])
def test_a_file_plays_a_model_of_a_config(
    tokens: list[np.ndarray], tmp_path: Path, ending: str
) -> None:
    flat = np.concatenate(tokens, axis=1).astype(np.float32)
    offsets = np.cumsum([0, *(one.shape[1] for one in tokens)])
    write(tmp_path / f"s1.{ending}", flat, TEXTS, offsets)
    entry = Model(source=StatesSource(states=f"{tmp_path}/{{revision}}.{ending}"))
    with open_model(entry, name="mine", revision="s1") as opened:
        assert (opened.name, opened.revision, opened.anatomy.n_layers) == ("mine", "s1", 4)
        found = states_of(opened, opened.reader.prompts(TEXTS[::-1])[0], budget=64)
        with refused("unsupported"):
            export(opened, Recipe(1), tmp_path / "cut", TEXTS)
        with refused("unsupported"):
            tiny.extracted(opened, tmp_path / "a.h5", TEXTS, sublayers=("mlp",))
        with refused("missing"):
            tiny.extracted(opened, tmp_path / "a.h5", [*TEXTS, "another text"])
    with refused("unsupported"):
        lw.analyse(tmp_path / f"s1.{ending}", TEXTS, max_length=5)
    np.testing.assert_allclose(found[2, "block"][0], tokens[-1][2], rtol=1e-6)
    before = identity(entry, "s1")
    write(tmp_path / f"s1.{ending}", flat + 1, TEXTS, offsets)
    assert identity(entry, "s1") != before
    with refused("missing_file"):
        identity(entry, "s2")


S = np.ones((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda p: write(p, S, ["a", "b"]), "wrong_shape"),
        (lambda p: write(p, S, ["a", "b", "a"]), "wrong_shape"),
        (lambda p: write(p, S[0], ["a", "b", "c"]), "wrong_shape"),
        (lambda p: write(p, S * np.nan, ["a", "b", "c"]), "wrong_shape"),
        (lambda p: write(p, S, ["a", "b"], [0, 2, 2]), "unreadable"),
        (lambda p: write(p, S, ["a", "b"], [0, 3, 3]), "wrong_shape"),
        (lambda p: write(p, S * 1j, ["a", "b", "c"]), "wrong_shape"),
        (lambda p: write(p, S.astype(np.uint16), ["a", "b", "c"]), "wrong_shape"),
        (lambda p: write(p, S * [[[1], [0], [1]]], ["a", "b", "c"]), "wrong_shape"),
        (lambda p: write(p, S, ["a", "b"], [0.0, 1.0, 3.0]), "unreadable"),
        (lambda p: p.write_bytes(b"x"), "unreadable"),
        (lambda p: h5py.File(p, "w").close(), "unreadable"),
    ],
)
def test_files_that_are_no_states(
    tmp_path: Path, make: Callable[[Path], object], code: Code
) -> None:
    make(path := tmp_path / "s.h5")
    with refused(code):
        lw.analyse(path, ["a"])


def test_more_layers_than_dimensions_get_a_word(caplog: pytest.LogCaptureFixture) -> None:
    lw.States(S, ["a", "b", "c"])
    assert not caplog.messages
    lw.States(np.ones((5, 3, 4), np.float32), ["a", "b", "c"])
    assert "5 layers of 4 dimensions" in caplog.text


@pytest.mark.parametrize(
    "options", [{"metrics": "prompt_entropy"}, {"metrics": "sink_rate"}, {"tokens": "drop_first"}]
)
def test_vectors_have_no_tokens(options: dict[str, Any]) -> None:
    with refused("unsupported"):
        lw.analyse(np.random.default_rng(0).normal(size=(2, 30, 4)), TEXTS, **options)
