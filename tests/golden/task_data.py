"""Small data of tasks, in the folders and files that users have them in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import transformers as hf
from helpers import tiny
from helpers.articles import wikipedia

from media.images import png

ARTICLES = wikipedia(articles=4, paragraphs=12)
TEXTS = [row.text for row in ARTICLES]
LABELS = [row.title for row in ARTICLES]


def retrieval(folder: Path) -> Path:
    """Passages of the same article as a query's, in the schema of MTEB's retrieval tasks."""
    rows = range(0, len(TEXTS), 6)
    tables = {
        "corpus": {"_id": [f"d{i}" for i in range(len(TEXTS))], "title": LABELS, "text": TEXTS},
        "queries": {"_id": [f"q{i}" for i in rows], "text": [TEXTS[i][40:] for i in rows]},
        "qrels": {
            "query-id": [f"q{i}" for i in rows for j in _same(i)],
            "corpus-id": [f"d{j}" for i in rows for j in _same(i)],
            "score": [1 + j % 2 for i in rows for j in _same(i)],
        },
    }
    configs = ""
    for name, table in tables.items():
        split = "test" if name == "qrels" else name
        path = folder / name / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(table).to_parquet(path)
        config = "default" if name == "qrels" else name
        configs += f"- config_name: {config}\n  data_files:\n  - split: {split}\n"
        configs += f"    path: {name}/{split}.parquet\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return folder


def _same(row: int) -> list[int]:
    return [j for j, label in enumerate(LABELS) if label == LABELS[row]]


def images(folder: Path) -> Path:
    """Images of three colours with noise, as the files of MTEB's task CIFAR10."""
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=list("abc"))}
    )
    for split, n in (("train", 45), ("test", 24)):
        rng = np.random.default_rng(n)
        held, labels = [], [number % 3 for number in range(n)]
        for label in labels:
            values = rng.integers(0, 200, (6, 6, 3))
            values[..., label] += 12
            held.append({"bytes": png(values.astype(np.uint8)), "path": None})
        folder.mkdir(parents=True, exist_ok=True)
        data = datasets.Dataset.from_dict({"img": held, "label": labels}, features=features)
        data.to_parquet(folder / f"{split}.parquet")
    return folder


def labelled(kind: str, folder: Path) -> Path:
    """A file of labels of 80 texts, 60 pairs or 40 sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = tiny.texts(80, seed=21)
    if kind == "tags":
        path = folder / "tags.conll"
        sentences = [text.split()[:12] for text in texts[:40]]
        lines = ["\n".join(f"{w} {_tag(w)}" for w in own) for own in sentences]
        path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
        return path
    n_words = np.array([len(text.split()) for text in texts])
    frame: dict[str, Any] = {
        "classification": {
            "text": texts,
            "label": np.where(n_words > np.median(n_words), "long", "short"),
        },
        "regression": {"text": texts, "label": n_words + 0.5, "by": np.arange(80) // 2},
        "pairs": {
            "first": texts[:60],
            "second": texts[20:],
            "score": [
                len({*a.split()} & {*b.split()}) / len({*a.split()} | {*b.split()})
                for a, b in zip(texts[:60], texts[20:], strict=True)
            ],
        },
    }[kind]
    path = folder / f"{kind}.parquet"
    pd.DataFrame(frame).to_parquet(path)
    return path


def _tag(word: str) -> str:
    return "SHORT" if len(word) < 4 else "S" if word.endswith("s") else "OTHER"


def questions(folder: Path, n: int, seed: int) -> Path:
    """Multiple-choice questions in the schema of MMLU."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    rows = [
        {
            "question": text,
            "choices": [" ".join(rng.choice(tiny.WORDS, k)) for k in (1, 2, 3, 1)],
            "answer": int(rng.integers(4)),
            "subject": "sailing",
        }
        for text in tiny.texts(n, seed, longest=12)
    ]
    path = folder / f"questions-{seed}.parquet"
    pd.DataFrame(rows).to_parquet(path)
    return path


def causal(folder: Path) -> Path:
    """A tiny Llama with its unembedding."""
    return tiny.save("llama", folder, seed=3, kind=hf.AutoModelForCausalLM, vectors=False)
