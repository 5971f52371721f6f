"""Labels of images as a task, and small vision models: through the same door as texts."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tiny_images

from layerwise.config.corpora import Sample
from layerwise.config.images import FolderImages, PackageImages
from layerwise.config.tasks import LabelledTask
from layerwise.corpora.images_sources import choose, open_images, png
from layerwise.corpora.images_table import write_images
from layerwise.errors import LayerwiseError
from layerwise.figures import labels
from layerwise.models.load import load
from layerwise.tasks import labelled, lens
from layerwise.vocabulary import Tokens

RNG = np.random.default_rng(0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    chosen = choose(open_images(PackageImages(package="digits")), Sample(n=120), "error", 10**6)
    write_images(tmp_path / "digits.parquet", "digits", chosen)
    return tmp_path / "digits.parquet"


def test_labels_of_a_corpus_are_a_task(corpus: Path) -> None:
    task = LabelledTask(corpus="digits", kind="classification")
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
    task = LabelledTask(corpus="c", kind="classification")
    with pytest.raises(LayerwiseError, match="4 of 4 images have no label"):
        labelled.read(task, tmp_path / "c.parquet")


@pytest.mark.parametrize("family", ["vit", "imagegpt"])
def test_what_is_for_texts_is_refused_in_a_sentence(family: str, tmp_path: Path) -> None:
    folder = tiny_images.save(family, tmp_path / "m")
    with pytest.raises(LayerwiseError, match="prompts came, but the model takes images"):
        load("m", tiny_images.entry(folder, prompts={"query": "q: "}), "main", device="cpu")
    entry = tiny_images.entry(folder)
    with pytest.raises(lens.NoAnswersError, match="m takes images, and"):
        lens.lens_of(load("m", entry, "main", device="cpu"), entry)


def test_every_choice_of_tokens_has_words() -> None:
    choices = set(get_args(Tokens))
    assert choices == set(labels.TOKENS) == set(labels.WITH)
