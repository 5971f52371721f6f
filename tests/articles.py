"""Invented articles in the schema of the unpacked Wikipedia slice."""

from __future__ import annotations

import random

import pandas as pd

WORDS = (
    "stone",
    "river",
    "light",
    "cloud",
    "iron",
    "garden",
    "winter",
    "letter",
    "engine",
    "sail",
)


def wikipedia(articles: int = 16, paragraphs: int = 12, seed: int = 0) -> pd.DataFrame:
    """Paragraphs in the schema of the unpacked Wikipedia slice; every article has its words."""
    rng = random.Random(seed)
    rows = []
    for article in range(articles):
        own = [f"{word}{article}" for word in WORDS]
        for number in range(paragraphs):
            sentences = [
                " ".join(rng.choices(own, k=rng.randint(6, 14))).capitalize() + "."
                for _ in range(4)
            ]
            rows.append((article, f"Article {article}", number, " ".join(sentences)))
    return pd.DataFrame(rows, columns=["article_id", "title", "paragraph", "text"])
