"""MTEB's tasks of images: listed, embedded and scored through the door of its tasks of texts."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import datasets
import mteb
import numpy as np
import pytest
import tiny_images
from encoding import store
from mteb.models.abs_encoder import AbsEncoder
from PIL import Image

from layerwise import tables
from layerwise.activations.embed import embed
from layerwise.corpora.images import Picture, png
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_bytes
from layerwise.models.load import load
from layerwise.tasks import catalog, texts
from layerwise.tasks.encoders import model_meta
from layerwise.tasks.layout import Reading
from layerwise.tasks.score import normalized, score_task

LAYERS, CLASSES = 2, 3
TASKS = {
    "CIFAR10": ("img", "label"),  # classification
    "VOC2007": ("image", "classes"),  # several labels an image
    "CIFAR10Clustering": ("img", "label"),
    "STS16VisualSTS": ("sentence1", "sentence2"),
    "CUB200I2IRetrieval": ("image", "id"),
}


def squares(n: int, seed: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Images of three colours with noise, and which colour each has."""
    rng = np.random.default_rng(seed)
    labels = [number % CLASSES for number in range(n)]
    held = []
    for label in labels:
        values = rng.integers(0, 200, (6, 6, 3))
        values[..., label] += 55
        held.append({"bytes": png(values.astype(np.uint8)), "path": None})
    return held, labels


def table(n: int, seed: int, columns: tuple[str, str], *, several: bool = False) -> Any:
    held, labels = squares(n, seed)
    names = datasets.ClassLabel(names=list("abc"))
    given = [[label, 2] if label else [0] for label in labels] if several else labels
    features = datasets.Features(
        {columns[0]: datasets.Image(), columns[1]: datasets.List(names) if several else names}
    )
    return datasets.Dataset.from_dict({columns[0]: held, columns[1]: given}, features=features)


def save(name: str, folder: Path) -> None:
    """A mirror of a task's data set with a few images."""
    columns, image = TASKS[name], datasets.Image()
    if name == "STS16VisualSTS":
        held, _ = squares(24, 2)
        features = {columns[0]: image, columns[1]: image, "score": datasets.Value("float64")}
        score = np.random.default_rng(0).uniform(0, 5, 12)
        given = {columns[0]: held[:12], columns[1]: held[12:], "score": score}
        data = datasets.Dataset.from_dict(given, features=datasets.Features(features))
        data.to_parquet(folder / "test.parquet")
    elif name == "CUB200I2IRetrieval":
        held, labels = squares(18, 3)
        ids = [f"i{number}" for number in range(18)]
        features = {"id": datasets.Value("string"), "image": image}
        given = {"id": ids, "image": held}
        data = datasets.Dataset.from_dict(given, features=datasets.Features(features))
        judged = [
            {"query-id": q, "corpus-id": d, "score": int(labels[i] == labels[j])}
            for i, q in enumerate(ids[:6]) for j, d in enumerate(ids)
        ]  # fmt: skip
        for config in ("corpus", "query", "qrels"):
            rows = {"corpus": data, "query": data.select(range(6))}.get(config)
            rows = rows or datasets.Dataset.from_list(judged)
            (folder / config).mkdir()
            rows.to_parquet(folder / config / "test.parquet")
        names = {"corpus": "corpus", "query": "queries", "qrels": "qrels"}
        said = "".join(
            f"- config_name: {names[c]}\n  data_files:\n  - split: test\n    path: {c}/*.parquet\n"
            for c in names
        )
        (folder / "README.md").write_text(f"---\nconfigs:\n{said}---\n")
    else:
        for split, n, seed in (("train", 60, 0), ("test", 30, 1)):
            data = table(n, seed, columns, several=name == "VOC2007")
            data.to_parquet(folder / f"{split}.parquet")


def features_of(image: Any) -> np.ndarray:
    """Two layers of an image, shape (2, 12): colours of its quarters, and their squares."""
    values = np.asarray(image.convert("RGB").resize((2, 2)), dtype=np.float32).ravel() / 255
    return np.stack([values, (values - 0.5) ** 2])


class Plain(AbsEncoder):
    """What anyone would write for mteb: go through the batches, look at each image."""

    def __init__(self, layer: int) -> None:
        self.mteb_model_meta = model_meta("plain", "main", modality="image")
        self.layer = layer

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        images = [image for batch in inputs for image in batch["image"]]
        return normalized(np.stack([features_of(image)[self.layer] for image in images]))


@pytest.mark.parametrize("name", TASKS)
def test_scores_are_those_of_a_plain_run_of_mteb(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    save(name, folder)
    folders = {name: str(folder)}
    listed = texts.distinct_texts(catalog.load(catalog.get_task(name, folders)))
    assert [sha256_bytes(data) for data in listed.images] == listed.texts
    texts.write_texts(tmp_path / "texts.parquet", listed)
    listed = texts.read_texts(tmp_path / "texts.parquet", name)
    # An image that is query and document stands there twice.
    files = dict(zip(listed.texts, listed.images, strict=True))
    values = [features_of(Image.open(io.BytesIO(data))) for data in files.values()]
    embeddings = np.stack(values, axis=1)
    path = store(tmp_path / "e.h5", name, list(files), embeddings, [Reading("all")])
    score_task(path, name, tmp_path / "s.parquet", tmp_path / "layers", folders=folders)
    found = tables.read(tmp_path / "s.parquet", "scores").set_index("layer")["main_score"]
    for layer in range(LAYERS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = mteb.evaluate(
                Plain(layer), catalog.get_task(name, folders), cache=None, co2_tracker=False,
                show_progress_bar=False,
            )  # fmt: skip
        (entries,) = run.task_results[0].scores.values()
        assert found[layer] == pytest.approx(entries[0]["main_score"], abs=1e-6)


def test_images_of_a_task_are_embedded_as_those_of_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    save("CIFAR10", tmp_path / "data")
    task = catalog.get_task("CIFAR10", {"CIFAR10": str(tmp_path / "data")})
    listed = texts.distinct_texts(catalog.load(task))
    folder = tiny_images.save("vit", tmp_path / "model")
    loaded = load("m", tiny_images.entry(folder), "main", device="cpu")
    pictures = [Picture(t, d, None, t) for t, d in zip(listed.texts, listed.images, strict=True)]
    slabs: list[Any] = []
    embed(loaded, pictures[:5], lambda *found: slabs.append(found[2]), readings=[Reading("all")])
    assert slabs[0][0].shape == (4, 5, 32)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("CIFAR10ZeroShot", "a task of type ZeroShotClassification over text/image.*Clustering"),
        ("CIRRIT2IRetrieval", "a task of type Any2AnyRetrieval over text/image"),
        ("VisualSTS17Eng", r"a group of tasks of type VisualSTS\(eng\)"),
    ],
)
def test_tasks_of_image_and_text_are_refused_by_name(name: str, match: str) -> None:
    with pytest.raises(LayerwiseError, match=f"{name} is {match}"):
        catalog.get_task(name)


def test_images_that_are_no_files_are_refused(tmp_path: Path) -> None:
    rows = {"img": [[[0, 1], [2, 3]]] * 12, "label": [0, 1] * 6}
    for split in ("train", "test"):
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / f"{split}.parquet")
    task = catalog.load(catalog.get_task("CIFAR10", {"CIFAR10": str(tmp_path)}))
    with pytest.raises(LayerwiseError, match="The images of CIFAR10 come as List"):
        texts.distinct_texts(task)
