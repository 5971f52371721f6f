"""Labels of images as a task, and small vision models: through the same door as texts."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tiny_images
from encoding import store
from transformers import ViTMAEForPreTraining

from layerwise.config import Config
from layerwise.config.corpora import Sample
from layerwise.config.images import FolderImages, PackageImages
from layerwise.config.models import Nano
from layerwise.config.own_tasks import OwnTask
from layerwise.corpora.images_sources import choose, open_images, png
from layerwise.corpora.images_table import write_images
from layerwise.errors import LayerwiseError
from layerwise.figures import labels
from layerwise.models import nano_images
from layerwise.models.load import load
from layerwise.tasks import joined, labelled, lens
from layerwise.tasks.layout import Embeddings, Reading
from layerwise.vocabulary import Tokens

RNG = np.random.default_rng(0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    chosen = choose(open_images(PackageImages(package="digits")), Sample(n=120), "error", 10**6)
    write_images(tmp_path / "digits.parquet", "digits", chosen)
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
    chosen = choose(open_images(FolderImages(folder=str(tmp_path))), Sample(), "error", 100)
    write_images(tmp_path / "c.parquet", "c", chosen)
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


@pytest.mark.parametrize("architecture", ["imagegpt", "vit_mae"])
def test_small_vision_models(architecture: str, tmp_path: Path) -> None:
    digits = open_images(PackageImages(package="digits"))
    pictures = choose(digits, Sample(n=90), "error", 10**6).pictures
    settings = Nano(
        architecture=architecture, layers=2, hidden=32, batch=8, train_steps=60, side=4,
        corpus="c", learning_rate=0.01, vocabulary=300,
    )  # fmt: skip
    folders = {step: tmp_path / str(step) for step in (0, 30)}
    history = nano_images.train(pictures, settings, [0, 30], folders)
    assert history[1]["held_out_loss"] < history[0]["held_out_loss"]
    again = nano_images.train(pictures, settings, [30], {30: tmp_path / "again"})
    assert again[0]["held_out_loss"] == history[1]["held_out_loss"]
    loaded = load("m", tiny_images.entry(tmp_path / "30"), "main", device="cpu")
    assert loaded.anatomy.n_layers == 3
    assert loaded.anatomy.prefix == 1
    assert loaded.max_length == (16 if architecture == "imagegpt" else 17)
    assert loaded.is_causal() == (architecture == "imagegpt")
    few = settings.model_copy(update={"batch": 40})
    with pytest.raises(LayerwiseError, match="90 images; training needs at least 104"):
        nano_images.train(pictures, few, [0], {0: tmp_path / "few"})


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


def test_a_masked_autoencoder_is_told_where_a_pixel_is(tmp_path: Path) -> None:
    digits = open_images(PackageImages(package="digits"))
    pictures = choose(digits, Sample(n=80), "error", 10**6).pictures
    settings = Nano(architecture="vit_mae", layers=1, hidden=32, batch=8, side=4, corpus="c")
    nano_images.train(pictures, settings, [0], {0: tmp_path})
    model = ViTMAEForPreTraining.from_pretrained(tmp_path)
    for positions in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        assert len(np.unique(positions[0].detach().numpy().round(4), axis=0)) == 17
    assert float(model.decoder.mask_token.detach().abs().sum()) > 0


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
