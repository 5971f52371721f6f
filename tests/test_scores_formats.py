"""Tasks in the shapes that mteb's data come in, mirrored in a local folder."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from articles import wikipedia
from scoring import LAYERS, Case, plain

from layerwise.errors import LayerwiseError
from layerwise.tasks import catalog

pytest_plugins = ["task_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = wikipedia(articles=4, paragraphs=20)
TEXTS = [row.text for row in ROWS]
LABELS = [row.title for row in ROWS]


def save(folder: Path, table: dict[str, list[Any]], name: str = "test.parquet") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(table).to_parquet(path)


def configs(folder: Path, **files: str) -> None:
    """A README that names configs, as mirrored data sets have it."""
    lines = [
        f"- config_name: {name}\n  data_files:\n  - split: {Path(file).stem}\n    path: {file}\n"
        for name, file in files.items()
    ]
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(lines) + "---\n")


def paired() -> dict[str, list[Any]]:
    both = list(itertools.combinations(range(0, len(TEXTS), 4), 2))
    return {
        "sent1": [TEXTS[i] for i, _ in both],
        "sent2": [TEXTS[j] for _, j in both],
        "labels": [int(LABELS[i] == LABELS[j]) for i, j in both],
    }


def pairs_in_one_row(folder: Path) -> None:
    save(folder, {name: [values] for name, values in paired().items()})


def pairs_in_rows(folder: Path) -> None:
    save(folder, paired())


def multilingual(folder: Path) -> None:
    numbers = [sorted(set(LABELS)).index(label) for label in LABELS]
    table = {"text": TEXTS, "label": numbers, "label_text": LABELS}
    for split in ("train", "validation", "test"):
        save(folder, table, f"en/{split}.parquet")
        save(folder, {**table, "text": ["fremd"] * len(TEXTS)}, f"de/{split}.parquet")
    text = "---\nconfigs:\n"
    for language in ("en", "de"):
        text += f"- config_name: {language}\n  data_files:\n"
        for split in ("train", "validation", "test"):
            text += f"  - split: {split}\n    path: {language}/{split}.parquet\n"
    (folder / "README.md").write_text(text + "---\n")


def sets_of_texts(folder: Path) -> None:
    rng = random.Random(0)
    sets = [rng.sample(range(len(TEXTS)), k=50) for _ in range(3)]
    save(
        folder,
        {
            "sentences": [[TEXTS[i] for i in rows] for rows in sets],
            "labels": [[LABELS[i] for i in rows] for rows in sets],
        },
    )


def reranking_with_titles(folder: Path) -> None:
    corpus = [f"d{i}" for i in range(len(TEXTS))]
    queries = [f"q{i}_0" for i in range(0, len(TEXTS), 8)]
    own = dict(zip(queries, range(0, len(TEXTS), 8), strict=True))
    save(folder, {"_id": corpus, "title": LABELS, "text": TEXTS}, "corpus/test.parquet")
    save(
        folder, {"_id": queries, "text": [TEXTS[own[q]] for q in queries]}, "queries/test.parquet"
    )
    judged = [(q, d) for q in queries for d in corpus]
    save(
        folder,
        {
            "query-id": [q for q, _ in judged],
            "corpus-id": [d for _, d in judged],
            "score": [int(LABELS[own[q]] == LABELS[int(d[1:])]) for q, d in judged],
        },
        "qrels/test.parquet",
    )
    save(folder, {"query-id": queries, "corpus-ids": [corpus] * len(queries)}, "top/test.parquet")
    configs(
        folder,
        corpus="corpus/test.parquet",
        queries="queries/test.parquet",
        qrels="qrels/test.parquet",
        top_ranked="top/test.parquet",
    )


def retrieval(folder: Path) -> None:
    corpus = [f"d{i}" for i in range(len(TEXTS))]
    queries = [f"q{i}" for i in range(0, len(TEXTS), 8)]
    own = dict(zip(queries, range(0, len(TEXTS), 8), strict=True))
    save(folder, {"_id": corpus, "title": LABELS, "text": TEXTS}, "corpus/corpus.parquet")
    asked = [TEXTS[own[q]].upper() for q in queries]
    save(folder, {"_id": queries, "text": asked}, "queries/queries.parquet")
    judged = [(q, d) for q in queries for d in corpus if LABELS[own[q]] == LABELS[int(d[1:])]]
    save(
        folder,
        {
            "query-id": [q for q, _ in judged],
            "corpus-id": [d for _, d in judged],
            "score": [1 + (int(d[1:]) % 2) for _, d in judged],
        },
        "qrels/test.parquet",
    )
    configs(
        folder,
        corpus="corpus/corpus.parquet",
        queries="queries/queries.parquet",
        default="qrels/test.parquet",
    )


def summaries(folder: Path) -> None:
    rows = range(0, len(TEXTS) - 5, 5)
    save(
        folder,
        {
            "text": [TEXTS[i] for i in rows],
            "human_summaries": [TEXTS[i : i + 2] for i in rows],
            "machine_summaries": [TEXTS[i + 2 : i + 5] for i in rows],
            "relevance": [[1.0 + i % 3, 2.5, 4.0 - i % 2] for i in rows],
        },
    )


def several_labels(folder: Path) -> None:
    numbers = [sorted(set(LABELS)).index(label) for label in LABELS]
    labels = [[number, 4 + place % 2] for place, number in enumerate(numbers)]
    for split in ("train", "validation", "test"):
        save(folder, {"text": TEXTS, "labels": labels, "label": labels}, f"en/{split}.parquet")
    text = "---\nconfigs:\n- config_name: en\n  data_files:\n"
    for split in ("train", "validation", "test"):
        text += f"  - split: {split}\n    path: en/{split}.parquet\n"
    (folder / "README.md").write_text(text + "---\n")


def scored_pairs(folder: Path) -> None:
    table = paired()
    scores = [4.0 * label + i % 3 / 10 for i, label in enumerate(table["labels"])]
    save(
        folder,
        {"sentence1": table["sent1"], "sentence2": table["sent2"], "score": scores},
    )


SHAPES = [
    ("TwitterSemEval2015", pairs_in_one_row),
    ("SprintDuplicateQuestions", pairs_in_rows),
    ("MTOPDomainClassification", multilingual),
    ("RedditClustering", sets_of_texts),
    ("TwentyNewsgroupsClustering.v2", sets_of_texts),
    ("AskUbuntuDupQuestions", reranking_with_titles),
    ("MindSmallReranking", reranking_with_titles),
    ("SICK-R", scored_pairs),
    ("NFCorpus", retrieval),
    ("SummEvalSummarization.v2", summaries),
    ("MultiEURLEXMultilabelClassification", several_labels),
]


@pytest.mark.parametrize(("name", "write"), SHAPES, ids=[name for name, _ in SHAPES])
def test_a_mirrored_task_has_mtebs_own_score(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "mirror"
    folder.mkdir()
    write(folder)
    case = Case(tmp_path, name, {name: str(folder)})
    assert "fremd" not in case.texts
    table = case.score()
    assert len(table) == LAYERS
    # The last one: whatever the layers before it may have left behind is then there.
    fresh = catalog.load(catalog.get_task(name, case.folders))
    theirs = plain(fresh, case.texts, case.values[0, -1])
    assert len(theirs) == 1
    assert table["main_score"].iloc[-1] == pytest.approx(theirs[0]["main_score"], abs=1e-6)
    assert table["main_score"].nunique() > 1


def test_titles_are_part_of_a_documents_text(tmp_path: Path) -> None:
    reranking_with_titles(tmp_path)
    case = Case(tmp_path, "AskUbuntuDupQuestions", {"AskUbuntuDupQuestions": str(tmp_path)})
    assert f"{LABELS[0]} {TEXTS[0]}" in case.texts
    assert TEXTS[0] in case.texts


def test_without_the_hub_a_missing_task_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(LayerwiseError, match=r"Banking77Classification .* task_folders"):
        catalog.load(catalog.get_task("Banking77Classification"))
