"""Invented articles, as the Wikipedia slice is when unpacked."""

import random

from quickstart.wikipedia import Paragraph

WORDS = "stone river light cloud iron garden winter letter engine sail"


def wikipedia(articles: int = 16, paragraphs: int = 12, seed: int = 0) -> list[Paragraph]:
    """Paragraphs; every article has words of its own."""
    rng = random.Random(seed)
    rows = []
    for article in range(articles):
        own = [f"{word}{article}" for word in WORDS.split()]
        for number in range(paragraphs):
            sentences = [
                " ".join(rng.choices(own, k=rng.randint(6, 14))).capitalize() + "."
                for _ in range(4)
            ]
            rows.append(
                Paragraph(f"{article}-{number}", f"Article {article}", " ".join(sentences))
            )
    return rows
