"""Corpora and views."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from cases import CASES, Case, place, short_hash
from helpers import tiny_audio

from layerwise.config.corpora import FileTexts, Filters, Perturb, Sample, ViewSettings
from layerwise.corpora.prompts import media_of
from layerwise.corpora.sources import open_texts, select
from layerwise.corpora.views import augment, perturb
from media import audio
from media.images import Picture, apply_view, draw_views
from media.settings import AudioViews, ImageCorpus, ImageViews, PackageImages
from quickstart import wikipedia

PROSE = [
    "The albedo is an important concept in climatology, astronomy, and sustainable building.",
    "Anarchism is a political philosophy that advocates self-governed societies.",
    "Short text.",
    "The quick brown fox jumps over the lazy dog; the dog sleeps on, and dreams of foxes.",
    "The quick brown fox jumps over the lazy dog; the dog sleeps on, and dreams of foxes.",
    "A storm crossed the bay in the night. Seven old sailors watched it from the pier, and sang.",
    "== A heading ==",
    "In 1905 he published four papers, on light, on atoms, on motion and on mass and energy.",
    "Her letters, 312 of them, were found in a tin box under the floor of the boat house.",
    "Rivers carry sand to the sea; the sea carries some of it back, and the wind the rest of it "
    "far inland, where it comes to lie in long low hills that wander on.",
]


def corpus_rows(source: Any, filters: Any, sample: Any) -> pd.DataFrame:
    prompts, _ = select(open_texts(*source)[0], filters, sample)
    return prompts.assign(number=range(len(prompts)), text=prompts["text"].map(short_hash))


def corpus_of_a_file(kind: str) -> pd.DataFrame:
    path = place("corpora") / f"texts.{kind}"
    if kind == "txt":
        path.write_text("\n".join(PROSE) + "\n", encoding="utf-8")
        source = FileTexts(file=str(path))
    else:
        ids = [f"row {number}" for number in range(len(PROSE))]
        pd.DataFrame({"name": ids, "body": PROSE}).to_json(path, orient="records", lines=True)
        source = FileTexts(file=str(path), column="body", id="name")
    filters = Filters(min_tokens=5, max_tokens=22, longer="cut" if kind == "jsonl" else "drop")
    return corpus_rows([source], filters, Sample(n=4, seed=3))


def corpus_of_wikipedia() -> pd.DataFrame:
    path = place("corpora") / "wikipedia.parquet"
    wikipedia.unpack(path)
    source = [FileTexts(file=str(path), id="id")]
    return corpus_rows(source, Filters(min_tokens=30, max_tokens=60), Sample(n=20))


def views_of_texts(actions: tuple[str, ...]) -> pd.DataFrame:
    texts = [text for text in dict.fromkeys(PROSE) if len(text) > 30]
    prompts = pd.DataFrame({"prompt_id": [f"p{i}" for i in range(len(texts))], "text": texts})
    views = augment(prompts, ViewSettings(n=4, actions=actions))
    return views.assign(text=views["text"].map(short_hash))


def perturbed_tokens() -> pd.DataFrame:
    ids = [0, *range(20, 45), 1]
    how = {
        "repetition": Perturb(repetition=0.4),
        "randomness": Perturb(randomness=0.4),
        "length": Perturb(length=6),
        "all": Perturb(repetition=0.2, randomness=0.5, length=12),
    }
    return pd.DataFrame(
        {
            "how": name,
            "prompt": prompt,
            "tokens": " ".join(
                map(
                    str,
                    perturb(ids, one, special={0, 1}, vocabulary=range(2, 300), prompt=prompt),
                )
            ),
        }
        for name, one in how.items()
        for prompt in ("a", "b")
    )


@cache
def digits() -> pd.DataFrame:
    package = PackageImages(package="digits")
    settings = ImageCorpus(images=package, classes=4, sample=Sample(n=12, seed=1))
    return Picture.read_corpus(settings)[0]


def corpus_of_images() -> pd.DataFrame:
    images = digits()
    images = images.assign(number=range(len(images)), image=images["sha256"].str[:16])
    return images[["number", "prompt_id", "label", "image", "width", "height"]]


def views_of_images() -> pd.DataFrame:
    settings = ImageViews(n=3, size=32)
    rows = []
    images = digits()[:4]
    drawn = draw_views(images, settings).groupby("prompt_id", sort=False)["drawn"]
    for picture in media_of(images):
        for view, parameters in enumerate(drawn.get_group(picture.name), start=1):
            pixels = np.asarray(apply_view(picture.pixels(), parameters), np.float64)
            rows.append(
                {
                    "prompt_id": picture.name,
                    "view": view,
                    "mean": pixels.mean(),
                    "deviation": pixels.std(),
                    "corner": pixels[:8, :8].mean(),
                    "left": pixels[:, :8].mean(),
                }
            )
    return pd.DataFrame(rows)


def views_of_recordings() -> pd.DataFrame:
    recordings = tiny_audio.recordings(4)
    table = pd.DataFrame({"prompt_id": r.name, "sha256": r.sha256} for r in recordings)
    drawn = audio.draw_views(table, AudioViews(n=3)).groupby("prompt_id", sort=False)
    rows = []
    for recording in recordings:
        for view, parameters in enumerate(drawn["drawn"].get_group(recording.name), start=1):
            samples = replace(recording, drawn=parameters).samples(8_000).astype(np.float64)
            rows.append(
                {
                    "prompt_id": recording.name,
                    "view": view,
                    "samples": len(samples),
                    "deviation": samples.std(),
                    "first": samples[:100].std(),
                    "middle": samples[len(samples) // 2],
                }
            )
    return pd.DataFrame(rows)


CASES |= {
    "corpus.text_file": Case(partial(corpus_of_a_file, "txt"), ("number",)),
    "corpus.table_file": Case(partial(corpus_of_a_file, "jsonl"), ("number",)),
    "corpus.wikipedia": Case(corpus_of_wikipedia, ("number",)),
    "views.substitute": Case(partial(views_of_texts, ("substitute",)), ("prompt_id", "view")),
    "views.all_actions": Case(
        partial(views_of_texts, ("substitute", "insert", "delete", "swap")),
        ("prompt_id", "view"),
    ),
    "corpus.perturbed": Case(perturbed_tokens, ("how", "prompt")),
    "images.digits": Case(corpus_of_images, ("number",)),
    "images.views": Case(views_of_images, ("prompt_id", "view"), atol=1e-3),
    "audio.views": Case(views_of_recordings, ("prompt_id", "view"), atol=1e-6),
}
