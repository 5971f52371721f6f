"""Labels of images as a task, and small vision models: through the same door as texts."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tiny_images
from encoding import store

from layerwise.config import Config
from layerwise.config.corpora import Sample
from layerwise.config.images import FolderImages, ImageCorpus, PackageImages
from layerwise.config.own_tasks import OwnTask
from layerwise.corpora.images import png
from layerwise.corpora.make import make_corpus
from layerwise.errors import LayerwiseError
from layerwise.figures import labels
from layerwise.models.load import load
from layerwise.tasks import joined, labelled, lens
from layerwise.tasks.layout import Embeddings, Reading
from layerwise.vocabulary import Tokens

RNG = np.random.default_rng(0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    settings = ImageCorpus(images=PackageImages(package="digits"), sample=Sample(n=120))
    make_corpus(tmp_path / "digits.parquet", "digits", settings)
    return tmp_path / "digits.parquet"


def test_labels_of_a_corpus_are_a_task(corpus: Path) -> None:
    task = OwnTask(corpus="digits", kind="classification")
    data = labelled.read(task, corpus)
    assert len(data.labels) == 120
    assert len(set(data.labels)) == 10
    listed = labelled.texts_of("which", task, corpus)
    assert listed.texts == data.texts[0]
    pixels = RNG.normal(size=(120, 4)).astype(np.float32)
    pixels[:, 0] += 9 * (data.labels == data.labels[0])
    found = labelled.layer_score(data, [pixels])
    assert found.probe is not None
    assert found.score is not None
    assert found.score > (found.chance or 0)


def test_images_without_labels_are_no_task(tmp_path: Path) -> None:
    for number in range(4):
        pixels = RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        (tmp_path / f"{number}.png").write_bytes(png(pixels))
    settings = ImageCorpus(images=FolderImages(folder=str(tmp_path)))
    make_corpus(tmp_path / "c.parquet", "c", settings)
    task = OwnTask(corpus="c", kind="classification")
    with pytest.raises(LayerwiseError, match="4 of 4 images have no label"):
        labelled.read(task, tmp_path / "c.parquet")


BASE = {
    "studies": {"power_law": {"kind": "power_law"}},
    "corpora": {
        "digits": {"images": {"package": "digits"}},
        "lee": {"source": {"package": "lee"}},
    },
    "tasks": ["which"],
}


def test_tasks_name_a_corpus_of_images() -> None:
    own = {"corpus": "digits", "kind": "classification"}
    assert Config.of({**BASE, "own_tasks": {"which": own}}).own_tasks["which"].corpus == "digits"
    for wrong, match in (
        ({**own, "corpus": "lee"}, r"own_tasks.which.corpus .*'lee'"),
        ({**own, "kind": "pairs"}, "a corpus of images goes with kind classification"),
        ({**own, "file": "a.csv"}, "one of file and corpus"),
        ({"kind": "classification"}, "one of file and corpus"),
    ):
        with pytest.raises(LayerwiseError, match=match):
            Config.of({**BASE, "own_tasks": {"which": wrong}})



def test_small_vision_models_want_images() -> None:
    source = {"folder": "results/nano/m/{revision}"}
    models = {"m": {"source": source, "revisions": ["step0"]}}
    nano = {"architecture": "imagegpt", "corpus": "lee"}
    with pytest.raises(LayerwiseError, match=r"nano.m.corpus: 'lee' came.*trained on images"):
        Config.of({**BASE, "tasks": [], "models": models, "nano": {"m": nano}})
    with pytest.raises(LayerwiseError, match="imagegpt needs a corpus of images"):
        Config.of(
            {**BASE, "tasks": [], "models": models, "nano": {"m": {"architecture": "imagegpt"}}}
        )


@pytest.mark.parametrize("family", ["vit", "imagegpt"])
def test_what_is_for_texts_is_refused_in_a_sentence(family: str, tmp_path: Path) -> None:
    folder = tiny_images.save(family, tmp_path / "m")
    with pytest.raises(LayerwiseError, match="prompts came, but the model takes images"):
        load("m", tiny_images.entry(folder, prompts={"query": "q: "}), "main", device="cpu")
    entry = tiny_images.entry(folder)
    with pytest.raises(lens.NoAnswersError, match="m takes images, and"):
        lens.lens_of(load("m", entry, "main", device="cpu"), entry)


def test_the_class_token_goes_beside_the_patches(tmp_path: Path) -> None:
    readings = [Reading("patches"), Reading("class"), Reading("patches", readout="output")]
    values = RNG.normal(size=(3, 2, 4, 3)).astype(np.float32)
    path = store(tmp_path / "e.h5", "t", list("abcd"), values, readings)
    with Embeddings(path) as file:
        units = joined.units(file, ["one", "concat class"])
        beside = [unit for unit in units if unit.layers == "concat class"]
        # Beside itself the class token is not read, nor where it is not stored.
        assert [(u.reading.tokens, u.reading.readout, u.layer) for u in beside] == [
            ("patches", "residual", 0), ("patches", "residual", 1),
        ]  # fmt: skip
        for normalize in (False, True):
            found = joined.Joiner(file, normalize=normalize).read(beside[1])
            pair = [values[0, 1], values[1, 1]]
            if normalize:
                pair = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in pair]
            np.testing.assert_allclose(found, np.concatenate(pair, axis=1), rtol=1e-5)


def test_a_class_token_is_asked_for_where_there_is_one() -> None:
    entry: dict[str, object] = {"source": {"folder": "x"}, "tokens": ["patches"]}
    scoring = {"layers": ["one", "concat class"]}
    given = {**BASE, "tasks": [], "models": {"m": entry}, "scoring": scoring}
    with pytest.raises(LayerwiseError, match=r"tokens: \[patches, class\]"):
        Config.of(given)
    entry["tokens"] = ["patches", "class"]
    assert Config.of(given).scoring.layers == ("one", "concat class")


def test_every_choice_of_tokens_has_words() -> None:
    choices = set(get_args(Tokens))
    assert choices == set(labels.TOKENS) == set(labels.WITH)
