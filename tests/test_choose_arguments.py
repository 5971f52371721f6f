"""Arguments of `choose` and `analyse` reach what they are for, and tables say what they hold."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import tiny

import layerwise as lw
from layerwise import analysis, choosing
from layerwise.analysis import labels_of
from layerwise.choosing import answer, compare, plot
from layerwise.tasks.evaluate import Score

TEXTS = [f"{text} ({n})" for n, text in enumerate(tiny.texts(60))]
LABELS = [n % 2 for n in range(60)]


class ReachedError(Exception):
    """What was to be called was called."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("models") / "llama")


def of_share(share: float, n: int = 200, **more: Any) -> Score:
    """A layer that has the first rows right."""
    right = np.arange(n) < round(share * n)
    return Score(share, n_runs=n, values=right.astype(float), **more)


def test_a_model_is_opened_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def opened(*given: Any, **options: Any) -> None:
        seen.append((given, options))
        raise ReachedError

    monkeypatch.setattr(choosing, "open_model", opened)
    monkeypatch.setattr("layerwise.models.opening.open_model", opened)
    asked = {"max_length": 7, "revision": "step3", "device": "cuda:1"}
    for labels in (None, LABELS):
        with pytest.raises(ReachedError):
            lw.choose("m", TEXTS, LABELS, "tokenizer", dtype="bfloat16", **asked)
        with pytest.raises(ReachedError):
            lw.analyse("m", TEXTS, "tokenizer", labels=labels, **asked)
    whole = asked | {"dtype": "bfloat16"}
    assert seen == [(("m", "tokenizer"), options) for options in (whole, asked)] * 2


def test_analyse_measures_as_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def measured(_: Any, views: Any, *given: Any, **options: Any) -> tuple[pd.DataFrame, None]:
        seen.append((views, given, options))
        return pd.DataFrame(), None

    probed: list[Any] = []

    def scored(_: Any, data: Any, *given: Any) -> list[Score]:
        probed.append((data.kind, data.labels.tolist(), *given))
        return [Score(0.5 + layer / 10, 0.4, 0.9, 60) for layer in range(3)]

    monkeypatch.setattr("layerwise.api.measure", measured)
    monkeypatch.setattr("layerwise.api.score_labels", scored)
    asked = {
        "metrics": ["rankme"],
        "tokens": ["all", "drop_first"],
        "protocols": ["reference"],
        "alphas": [2.0],
        "normalizations": ["logD"],
    }
    frame = pd.DataFrame({"body": TEXTS})
    table = lw.analyse(
        folder, frame, labels=LABELS, views=[frame], column="body", threads=3, **asked
    )
    assert seen == [([TEXTS, TEXTS], (3,), asked)]
    assert probed == [("classification", LABELS, tokens, 3) for tokens in asked["tokens"]]
    assert table["tokens"].tolist() == ["all"] * 3 + ["drop_first"] * 3
    assert table["layer"].tolist() == [0, 1, 2] * 2
    assert table["depth"].tolist() == [0, 0.5, 1] * 2
    numbers = table[["value", "low", "high", "n"]][:3].to_numpy().T.tolist()
    assert numbers == [[0.5, 0.6, 0.7], [0.4] * 3, [0.9] * 3, [60] * 3]


def test_labels_are_scored_as_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def embedded(_: Any, rows: Any, *given: Any) -> None:
        seen.append((rows, *given))

    def scored(rows: Any, _: None, threads: int) -> list[Score]:
        seen[-1] += (threads,)
        return [of_share(share) for share in (0.5, 0.8, 0.6, 0.55)]

    monkeypatch.setattr(choosing, "embed_labels", embedded)
    monkeypatch.setattr(choosing, "score_vectors", scored)
    choice = lw.choose(folder, TEXTS, LABELS)
    assert choice.layer == 1 and choice.tokens == "drop_first", "the first token may be a sink"
    assert choice.rows == (
        "Read 60 of 60 labelled rows, classification: 2 classes ('0': 30, '1': 30)."
    )
    assert html.escape(choice.rows) in choice._repr_html_()
    lw.choose(folder, TEXTS, LABELS, tokens="all", threads=3, part={"last": 2}, score="macro_f1")
    frame = pd.DataFrame({"text": [*TEXTS[:-1], TEXTS[0] + " "]})
    lw.choose(folder, frame, LABELS, kind="regression")
    (first, *default), (second, *asked), (third, *_) = seen
    assert default == ["drop_first", None, 1] and asked == ["all", {"last": 2}, 3]
    kinds = ["classification", "classification", "regression"]
    assert [data.kind for data in (first, second, third)] == kinds
    assert [data.measure for data in (first, second, third)] == ["accuracy", "macro_f1", "r2"]
    assert {data.n_shuffles for data in (first, second, third)} == {0}, "nobody sees a control"
    assert third.groups[0] == third.groups[-1] and len({*third.groups}) == 59


def test_processes_change_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    data = labels_of(TEXTS, LABELS)
    vectors = np.random.default_rng(0).normal(size=(3, len(data.distinct()), 8))
    alone = analysis.score_vectors(data, vectors.astype(np.float32))
    monkeypatch.setattr(analysis, "WORTH_PROCESSES", 1)
    assert analysis.score_vectors(data, vectors.astype(np.float32), 2) == alone


def test_a_layer_without_a_score_keeps_its_number() -> None:
    none = Score(None, n_runs=200, why="its embeddings are all alike")
    table = compare([of_share(0.5), none, of_share(0.8), of_share(0.6)], "accuracy")
    assert list(table) == [
        *("layer", "score", "low", "high", "difference", "difference_low", "difference_high"),
        *("n", "compute_saved"),
    ]
    data = replace(labels_of(TEXTS, LABELS), measure="accuracy")
    choice = answer(table, data, None)
    assert choice.layer == 2 and choice.advice == "Use layer 2 of 3."
    assert table["layer"].tolist() == [0, 1, 2, 3] and set(table["n"]) == {200}
    assert table.loc[1].drop(["layer", "n", "compute_saved"]).isna().all()
    whole = table.drop(index=1)
    assert whole["score"].tolist() == pytest.approx([0.5, 0.8, 0.6])
    assert whole["difference"].tolist() == pytest.approx([-0.1, 0.2, 0.0])
    for name in ("score", "difference"):
        ends = ("low", "high") if name == "score" else (f"{name}_low", f"{name}_high")
        low, high = (whole[end][:-1] for end in ends)
        assert (low < whole[name][:-1]).all() and (whole[name][:-1] < high).all(), name


def test_a_plot_of_scores_marks_the_layer_and_the_output(tmp_path: Path) -> None:
    layers = [of_share(0.5), of_share(0.8), of_share(0.6), of_share(0.55)]
    data = replace(labels_of(TEXTS, LABELS), measure="accuracy")
    choice = answer(compare(layers, "accuracy"), data, None, tokens="drop_first")
    figure = plot(choice, tmp_path / "p.png", model="tiny")
    (ax,) = figure.axes
    lines = [np.array(line.get_xydata()) for line in ax.lines]
    assert any(np.allclose(line, [[0, 50], [1 / 3, 80], [2 / 3, 60], [1, 55]]) for line in lines)
    level = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [line.get_ydata()[0] for line in level] == pytest.approx([55])
    upright = [line for line in lines if len(line) == 2 and line[0, 0] == line[1, 0]]
    assert [line[0, 0] for line in upright] == pytest.approx([1 / 3])
    ends = 55 + 100 * choice.table[["difference_low", "difference_high"]].to_numpy()
    edge = ax.collections[-1].get_paths()[0].vertices
    for depth, (low, high) in zip((0, 1 / 3, 2 / 3, 1), ends, strict=True):
        at = edge[np.isclose(edge[:, 0], depth), 1]
        assert (at.min(), at.max()) == pytest.approx((low, high))
    assert ax.get_ylabel().startswith("Accuracy of a linear probe")
    assert figure.get_suptitle() == "Use layer 1 of 3" or ax.get_title() == "Use layer 1 of 3"
