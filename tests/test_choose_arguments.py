"""Arguments of `choose` and `analyse` reach what they are for, and tables say what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import tiny
from helpers.refused import refused

import layerwise as lw
from layerwise import analysis, choosing
from layerwise.analysis import labels_of
from layerwise.association import published
from layerwise.choosing.by_evidence import choose_by_evidence
from layerwise.choosing.by_scores import choose_by_scores
from layerwise.choosing.choice import plot
from layerwise.models.load import load
from layerwise.tasks.evaluate import Here
from layerwise.tasks.results import Score, TaskScores

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
    return Score(share, n_runs=n, parts=right / n, **more)


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
            texts = None if labels is None else TEXTS
            lw.choose("m", texts, labels, "tokenizer", dtype="bfloat16", **asked)
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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Calls of `score_labels`, which has a layer lead, and on labelled rows another one."""
    seen: list[Any] = []

    def scored(_: Any, data: Any, *given: Any, **options: Any) -> list[Score]:
        seen.append((data, given, options))
        shares = (0.5, 0.8, 0.6, 0.55) if len(seen) == 1 else (0.5, 0.7, 0.8, 0.6)
        return [of_share(share) for share in shares]

    monkeypatch.setattr(choosing, "score_labels", scored)
    yield seen


def test_labels_are_scored_as_asked(folder: Path, calls: list[Any]) -> None:
    choice = lw.choose(folder, TEXTS, LABELS)
    assert choice.layer == 1 and choice.tokens == "drop_first", "the first token may be a sink"
    lw.choose(folder, TEXTS, LABELS, tokens="all", threads=3, part={"last": 2}, score="macro_f1")
    frame = pd.DataFrame({"body": [*TEXTS[:-1], TEXTS[0] + " "]})
    lw.choose(folder, frame, LABELS, column="body", kind="regression")
    (first, *default), (second, *asked), (third, *_) = calls
    assert default == [("drop_first", 1), {"part": None}]
    assert asked == [("all", 3), {"part": {"last": 2}}]
    assert [data.kind for data in (first, second, third)] == [
        *["classification"] * 2,
        "regression",
    ]
    assert [data.measure for data in (first, second, third)] == ["accuracy", "macro_f1", "r2"]
    assert {data.n_shuffles for data in (first, second, third)} == {0}, "nobody sees a control"
    assert third.groups[0] == third.groups[-1] and len({*third.groups}) == 59


def test_a_test_set_is_compared_with_the_labelled_rows(folder: Path, calls: list[Any]) -> None:
    other = labels_of([f"another {text}" for text in TEXTS], LABELS)
    choice = lw.choose(folder, TEXTS, LABELS, test=other, threads=2, part={"last": 2})
    assert [data.n_tested for data, *_ in calls] == [60, 0]
    assert [len(data.labels) for data, *_ in calls] == [120, 60]
    assert [given for _, given, _ in calls] == [("drop_first", 2)] * 2
    assert [options["part"] for *_, options in calls] == [{"last": 2}] * 2
    assert choice.layer == 1 and choice.reason.endswith(
        " By cross-validation on the labelled rows it scores 0.70 and ranks 2 of 4, where layer 2 "
        "would be chosen; the rank correlation of layers between both is 0.80."
    )
    assert choice.rows == (
        "Read 120 of 120 labelled rows, classification: 2 classes ('0': 60, '1': 60)."
    )


@pytest.mark.parametrize(
    "given",
    [
        {"significant": True},
        {"score": "accuracy"},
        {"test": labels_of(TEXTS, LABELS)},
        {"within": 0.0},
        {"part": {"last": 1}},
        {"column": "body"},
        {"kind": "regression"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_needs_labels_is_named(given: dict[str, Any]) -> None:
    with refused("conflict") as caught:
        lw.choose("no/model", **given)
    assert str(caught.value).startswith(f"{next(iter(given))} needs labels")


def test_a_layer_without_a_score_keeps_its_number() -> None:
    none = Score(None, n_runs=200, why="its embeddings are all alike")
    choice = choose_by_scores(
        [of_share(0.5), none, of_share(0.8), of_share(0.6)], "classification"
    )
    assert choice.layer == 2 and choice.advice == "Use layer 2 of 3."
    table = choice.table
    assert list(table) == [
        *("layer", "score", "low", "high", "difference", "difference_low", "difference_high"),
        *("gain", "gain_low", "gain_high", "n"),
    ]
    assert table["layer"].tolist() == [0, 1, 2, 3] and set(table["n"]) == {200}
    assert table.loc[1].drop(["layer", "n"]).isna().all()
    whole = table.drop(index=1)
    assert whole["score"].tolist() == pytest.approx([0.5, 0.8, 0.6])
    assert whole["difference"].tolist() == pytest.approx([-0.1, 0.2, 0.0])
    assert whole["gain"].iloc[-1] == whole["gain_low"].iloc[-1] == whole["gain_high"].iloc[-1] == 0
    for name in ("score", "difference", "gain"):
        ends = ("low", "high") if name == "score" else (f"{name}_low", f"{name}_high")
        low, high = (whole[end][:-1] for end in ends)
        assert (low < whole[name][:-1]).all() and (whole[name][:-1] < high).all(), name
    # Depths are those of the layers' numbers: beside the output, its neighbour counts most.
    late = choose_by_scores([of_share(0.6), none, none, of_share(0.5), of_share(0.5)], "pairs")
    early = choose_by_scores([of_share(0.6), of_share(0.5), none, none, of_share(0.5)], "pairs")
    assert late.table["gain"][0] != pytest.approx(early.table["gain"][0], rel=1e-3)


def test_an_expected_gain_of_one_row_of_evidence_is_the_priors() -> None:
    """By hand, of two layers: a prior of N(-0.1, s²) of the lead, and its measured value."""
    from layerwise.choosing.by_scores import expected_gains

    noise = 0.03
    gain, error = expected_gains(np.array([0.7, 0.6]), noise**2 * np.eye(2), np.array([0.0, 1.0]))
    apart = np.exp(-((1 / 0.2) ** 2) / 2)
    prior, measured = 2 * (0.1**2 * (1 - apart) + 0.02**2), 2 * noise**2
    weight = prior / (prior + measured)
    assert gain == pytest.approx([-0.1 + weight * 0.2, 0])
    assert error[0] == pytest.approx(np.sqrt(prior * (1 - weight)), rel=1e-6) and error[1] == 0


def rows_of(kind: str, corpus: Any, rule: str, loss: float) -> list[dict[str, Any]]:
    about = {"kind": kind, "corpus": corpus, "rule": rule, "direction": np.nan}
    return [{**about, "model": f"m{n}", "loss": loss + n % 2} for n in range(6)]


def test_the_evidence_is_of_models_and_texts_of_the_same_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decoder, rows = published.DECODER, []
    for kind, corpus, rule, loss in (
        (decoder, None, "model output", 6.0),
        (decoder, None, "middle layer", 4.0),
        (decoder, "task texts", "curvature", 3.0),
        (decoder, "imagenet", "dime", 8.0),
        (decoder, "wikitext", "lidar", 1.0),
        (published.ENCODER, None, "middle layer", 0.0),
    ):
        rows += rows_of(kind, corpus, rule, loss)
    monkeypatch.setattr(published, "losses", lambda: pd.DataFrame(rows))
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    choice = choose_by_evidence(loaded, "all")
    assert list(choice.table) == ["rule", "layer", "loss", "low", "high", "n_models"]
    assert choice.table["rule"].tolist() == ["curvature", "middle layer", "model output", "dime"]
    assert choice.table["loss"].tolist() == [3.5, 4.5, 6.5, 8.5]
    assert choice.table["layer"].fillna(-1).tolist() == [-1, 1, 3, -1]
    assert set(choice.table["n_models"]) == {6}
    half = 2.570582 * np.sqrt(0.3 / 6)  # Student's, of six values that alternate by 1
    assert choice.table["low"].tolist() == pytest.approx(choice.table["loss"] - half, rel=1e-5)
    assert (choice.layer, choice.advice, choice.tokens) == (1, "Use layer 1 of 3.", "all")
    # The axes hold the table: the smallest loss on top.
    figure = plot(choice, tmp_path / "p.png")
    (ax,) = figure.axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    by_height = [text for _, text in sorted(zip(ax.get_yticks(), labels, strict=True))]
    on_top = by_height[::-1] if not ax.yaxis_inverted() else by_height
    assert [text.lower() for text in on_top] == [
        *("curvature", "middle layer", "model output", "dime")
    ]


def test_a_plot_of_scores_marks_the_layer_and_the_output(tmp_path: Path) -> None:
    layers = [of_share(0.5), of_share(0.8), of_share(0.6), of_share(0.55)]
    choice = choose_by_scores(layers, "classification", "drop_first")
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


def test_labels_are_scored_in_processes_where_it_pays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def score_tasks(setup: Any, tasks: Any, write: Any, pool: Any, threads: int) -> None:
        seen.append((setup, tasks["labels"], pool.pool, threads))
        scores = {(layer, 0): [Score(layer / 10)] for layer in range(4)}
        write(TaskScores("labels", "Classification", [], scores))

    processes = Here()
    asked: list[int] = []
    monkeypatch.setattr("layerwise.tasks.evaluate.score_tasks", score_tasks)
    monkeypatch.setattr(
        "joblib.externals.loky.get_reusable_executor", lambda n: asked.append(n) or processes
    )
    loaded, data = load("m", tiny.entry(folder), "main", device="cpu"), labels_of(TEXTS, LABELS)
    for worth, threads, in_processes in ((240, 2, True), (241, 2, False), (240, 1, False)):
        monkeypatch.setattr(analysis, "WORTH_PROCESSES", worth)
        scores = analysis.score_labels(loaded, data, "drop_first", threads, part={"last": 2})
        assert [score.main_score for score in scores] == [0.0, 0.1, 0.2, 0.3]
        setup, labels, pool, n_shares = seen.pop()
        assert (pool is processes) == in_processes
        assert n_shares == 4, "a call a layer, so that layers are counted"
        assert setup.extraction.tokens == ("drop_first",) and setup.scoring.part.last == 2
        assert setup.scoring.poolings == (loaded.embedder.pooling,)
        assert labels.texts == [TEXTS] and labels.labels.tolist() == LABELS
    assert asked == [2]


def test_texts_or_states_alone_cannot_tell_a_layer() -> None:
    for model, texts in (("no/model", TEXTS), (np.zeros((3, 5, 4)), None)):
        with refused("conflict") as caught:
            lw.choose(model, texts)
        assert ("states" in str(caught.value)) == (texts is None)
