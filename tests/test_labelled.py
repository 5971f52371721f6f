"""Own labels: probes against closed forms and scikit-learn, rows kept apart, files refused."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.refused import refused
from scipy import stats
from scipy.special import softmax
from sklearn import metrics
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

from layerwise.config.tasks import LabelledEntry
from layerwise.errors import LayerwiseError
from layerwise.tasks import labelled, probes
from layerwise.tasks.labelled import LabelledTask, Labels, layer_score, pairs_score
from layerwise.tasks.labels import read_tagged
from layerwise.tasks.task import normalized, texts_of

N = 200


def features(seed: int = 0, n: int = N, d: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def test_a_linear_number_is_predicted_as_by_least_squares() -> None:
    x = features(n=1000)
    y = x @ np.arange(8) + np.random.default_rng(1).normal(size=1000)
    labels = probes.numbers(y.tolist())
    rows = probes.splits(labels)
    found = probes.probe(x, labels, rows)
    plain = np.concatenate(
        [LinearRegression().fit(x[s.fitted], y[s.fitted]).predict(x[s.test]) for s in rows]
    )
    truth = np.concatenate([y[s.test] for s in rows])
    assert found.main_score == pytest.approx(
        1 - ((plain - truth) ** 2).mean() / truth.var(), abs=2e-3
    )
    assert found.score_low < found.main_score < found.score_high


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_the_penalty_is_the_strongest_within_one_standard_error_of_the_best(kind: str) -> None:
    x = features(n=300, d=40)
    signal = x[:, :3].sum(axis=1) + np.random.default_rng(1).normal(scale=3, size=300)
    values = probes.numbers(signal.tolist())
    labels = values if kind == "numbers" else probes.classes([str(v > 0) for v in signal])
    split = probes.splits(labels)[0]
    train, held = split.train, split.validation
    scaled = (x - x[train].mean(axis=0)) / x[train].std(axis=0)
    losses = []
    for penalty in probes.PENALTIES:
        if kind == "numbers":
            model: Any = Ridge(alpha=penalty * len(train)).fit(scaled[train], labels[train])
            losses.append((model.predict(scaled[held]) - labels[held]) ** 2)
        else:
            model = LogisticRegression(C=1 / (penalty * len(train)), tol=1e-8, max_iter=5000)
            chances = model.fit(scaled[train], labels[train]).predict_proba(scaled[held])
            losses.append(-np.log(chances[np.arange(len(held)), labels[held]]))
    means = np.mean(losses, axis=1)
    best = means.argmin()
    bound = means[best] + stats.sem(losses[best])
    expected = probes.PENALTIES[int(np.argmax(means <= bound))]
    found = probes.probe(x, labels, [split])
    assert found.penalty == expected != probes.PENALTIES[best]
    noisy = x * (1 + 1e-6 * np.random.default_rng(2).normal(size=x.shape))
    moved = probes.probe(noisy.astype(np.float32), labels, [split])
    half = (found.score_high - found.score_low) / 2
    assert moved.penalty == expected and abs(moved.main_score - found.main_score) < half


def test_a_row_that_is_tested_changes_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = features(n=probes.FEW + 100)
    noise = np.random.default_rng(1).normal(size=len(x))
    labels = probes.classes([str(v > 0) for v in x[:, 0] + noise])
    (split,) = rows = probes.splits(labels)
    odd = x.copy()
    odd[split.test[0]] = 1e6
    monkeypatch.setattr(probes, "pseudo_values", lambda _, predicted, *__: predicted)
    plain, changed = (
        probes.probe(each, labels, rows, with_values=True).values for each in (x, odd)
    )
    assert np.array_equal(plain[1:], changed[1:])


def scores_of_sklearn(n_classes: int) -> dict[str, Any]:
    """Scores of labels and predictions; of two classes, class 1 is the rarer."""
    classes = range(n_classes)

    def macro(score: Any) -> Any:
        if n_classes == 2:
            return lambda y, p: score(y == 1, p[:, 1])
        return lambda y, p: np.mean([score(y == c, p[:, c]) for c in classes])

    return {
        "accuracy": metrics.accuracy_score,
        "balanced_accuracy": metrics.balanced_accuracy_score,
        "macro_f1": lambda y, p: metrics.f1_score(y, p, average="macro"),
        "auroc": macro(metrics.roc_auc_score),
        "average_precision": macro(metrics.average_precision_score),
        "r2": metrics.r2_score,
        "spearman": lambda y, p: stats.spearmanr(y, p).statistic,
    }


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("name", [*probes.NAMES])
def test_scores_are_sklearns_and_their_errors_those_of_the_bootstrap(
    name: str, n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    n, score = 300, scores_of_sklearn(n_classes)[name]
    shares = [0.85, 0.15] if n_classes == 2 else [0.4, 0.3, 0.2, 0.1]
    truth: Any = rng.choice(n_classes, size=n, p=shares)
    predicted: Any = softmax(
        rng.normal(size=(n, n_classes)).round(1) + np.eye(n_classes)[truth], 1
    )
    if name not in probes.OF_SHARES:
        predicted = predicted.argmax(axis=1)
    if name in probes.OF_KIND["regression"]:
        truth = rng.normal(size=n)
        predicted = truth + rng.normal(size=n).round(1)
    monkeypatch.setattr(probes, "BLOCKS", n)
    values = probes.pseudo_values(name, predicted, truth, np.arange(n))
    assert values.mean() == pytest.approx(score(truth, predicted))
    drawn = rng.integers(n, size=(200, n))
    errors = np.std([score(truth[rows], predicted[rows]) for rows in drawn])
    assert values.std() / np.sqrt(n) == pytest.approx(errors, rel=0.15)
    halves = np.arange(n) % 2
    apart = probes.score(name, predicted, truth, halves)
    of_halves = [score(truth[halves == k], predicted[halves == k]) for k in (0, 1)]
    expected = np.mean(of_halves) if name in probes.BY_SPLIT else score(truth, predicted)
    assert apart == pytest.approx(expected)


def test_a_class_that_the_test_rows_lack_does_not_count() -> None:
    rng = np.random.default_rng(0)
    truth, shares = np.arange(40) % 2, rng.dirichlet(np.ones(3), 40)
    for name, score in (
        ("auroc", metrics.roc_auc_score),
        ("average_precision", metrics.average_precision_score),
    ):
        expected = np.mean([score(truth == c, shares[:, c]) for c in (0, 1)])
        assert probes.score(name, shares, truth) == pytest.approx(expected)
        assert np.isfinite(probes.pseudo_values(name, shares, truth, np.arange(40))).all()
        assert np.isnan(probes.score(name, shares[:, :2], np.zeros(40, int)))
    said = rng.integers(0, 3, 40)
    expected = metrics.f1_score(truth, said, average="macro")
    assert probes.score("macro_f1", said, truth) == pytest.approx(expected)


def test_intervals_are_wilsons_and_wider_for_rows_in_groups() -> None:
    right = np.arange(N) % 10 < 7
    expected = stats.binomtest(140, N).proportion_ci(method="wilson")
    alone = probes._accuracy_interval(right, np.ones(N, bool), np.arange(N))
    assert alone == pytest.approx((expected.low, expected.high))
    # Ten equal rows a group tell as much as one.
    grouped = np.repeat(right[:20], 10)
    low, high = probes._accuracy_interval(grouped, np.ones(N, bool), np.arange(N) // 10)
    few = stats.binomtest(14, 20).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((few.low, few.high))


@pytest.mark.parametrize("n", [400, 3000])
def test_groups_stay_together_and_classes_are_shared_out(n: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, n)
    groups = (np.arange(n) // 3).tolist()
    splits = probes.splits(labels, groups)
    assert len(splits) == (5 if n <= probes.FEW else 1)
    for split in splits:
        parts = [
            {groups[row] for row in rows} for rows in (split.train, split.validation, split.test)
        ]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
        assert len(split.train) + len(split.validation) + len(split.test) == n
        shares = np.bincount(labels[split.test]) / len(split.test)
        np.testing.assert_allclose(shares, 0.25, atol=0.08)


def test_pairs_are_spearmans_correlation_of_cosines() -> None:
    first, second = features(1), features(2)
    cosines = (normalized(first) * normalized(second)).sum(axis=1)
    judged = cosines + np.random.default_rng(3).normal(size=N) * 0.2
    texts = [[f"a{i}" for i in range(N)], [f"b{i}" for i in range(N)]]
    data = Labels("pairs", texts, judged, texts[0])
    found = layer_score(data, [first, second])
    assert found.main_score == pytest.approx(stats.spearmanr(cosines, judged).statistic)
    # The interval is about that of a bootstrap.
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, N, N) for _ in range(500)]
    rhos = [stats.spearmanr(cosines[rows], judged[rows]).statistic for rows in drawn]
    assert (found.score_low, found.score_high) == pytest.approx(
        np.quantile(rhos, [0.025, 0.975]), abs=0.03
    )
    assert found.values.mean() == pytest.approx(found.main_score, abs=1e-9)


def test_pairs_that_share_a_text_are_not_independent() -> None:
    rng = np.random.default_rng(0)
    of_text = rng.normal(size=10)
    texts = np.stack([np.repeat(np.arange(10), 20), np.arange(10, 210)])
    x = of_text[texts[0]] + rng.normal(size=N) * 0.1
    y = of_text[texts[0]] + rng.normal(size=N)
    apart = [[f"a{i}" for i in range(N)], [f"b{i}" for i in range(N)]]
    shared, alone = (
        pairs_score(Labels("pairs", apart, y, list(groups)), x)
        for groups in (texts[0], np.arange(N))
    )
    assert shared.main_score == alone.main_score
    widths = [score.score_high - score.score_low for score in (shared, alone)]
    assert widths[0] > 1.3 * widths[1]
    assert pairs_score(Labels("pairs", apart, y, apart[0]), np.zeros(N)).main_score is None
    few = pairs_score(Labels("pairs", apart, y, ["a", "b"] * (N // 2)), x)
    assert few.score_low is None and few.main_score == alone.main_score


def frame(n: int = 40) -> pd.DataFrame:
    return pd.DataFrame({"text": [f"text {i}" for i in range(n)], "label": ["a", "b"] * (n // 2)})


@pytest.mark.parametrize(
    ("written", "code"),
    [([1, 1.0, "1"], ""), (["a", "a "], "duplicate"), ([1.0, None], "missing")],
)
def test_a_group_is_one_however_it_is_written(
    written: list[Any], code: str, tmp_path: Path
) -> None:
    """Else rows of one author would be trained and tested on."""
    path, n = tmp_path / "l.jsonl", len(written)
    rows = [{"text": f"t {k}", "label": f"{k % 2}", "by": f"x{k}"} for k in range(60)]
    for row, by in zip(rows, written, strict=False):
        row["by"] = by
    path.write_text("\n".join(map(json.dumps, rows)))
    task = LabelledEntry(file=str(path), kind="classification", group="by")
    if code:
        with refused(code):
            labelled.read(task)
    else:
        assert len(set(labelled.read(task).groups[:n])) == 1


@pytest.mark.parametrize("odd", [True, np.bool_(False), pd.Timestamp("2024-01-01"), "2024-01-01"])
def test_truth_values_and_dates_are_no_numbers_of_a_scale(odd: Any) -> None:
    with refused("wrong_type"):
        probes.numbers([*np.arange(30.0), odd])
    mixed = [1, 2.5, "3", Decimal("4.5")] * 5
    assert probes.numbers(mixed).tolist() == [1, 2.5, 3, 4.5] * 5


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda t: t.rename(columns={"label": "labl"}), "unknown_name"),
        (lambda t: t.assign(text=["", *t["text"][1:]]), "missing"),
        (lambda t: t.assign(label=[None, *t["label"][1:]]), "missing"),
        (lambda t: t.assign(label="a"), "too_few"),
        (lambda t: t.assign(label=["c", *t["label"][1:]]), "too_few"),
        (lambda t: t.iloc[:10], "too_few"),
        (lambda t: t.assign(text="same"), "too_few"),
        (lambda t: t.iloc[:0], "too_few"),
    ],
)
def test_bad_rows_are_refused(change: Any, code: str, tmp_path: Path) -> None:
    change(frame()).to_csv(tmp_path / "l.csv", index=False)
    task = LabelledEntry(file=str(tmp_path / "l.csv"), kind="classification")
    with pytest.raises(LayerwiseError, match=r"l\.csv") as caught:
        labelled.read(task)
    assert caught.value.code == code


def test_numbers_are_finite_and_differ() -> None:
    for bad, code in (("x", "wrong_type"), (np.inf, "wrong_type"), (1.0, "too_few")):
        values = [1.0] * 19 if bad == 1.0 else list(np.arange(19.0))
        with pytest.raises(LayerwiseError) as caught:
            probes.numbers([*values, bad])
        assert caught.value.code == code


CONLL = "-DOCSTART- X\n\nthe DT\ndog NN\nruns VB\n\na DT\ncat NN\n"
CONLLU = "# text = a cat\n1-2\ta cat\t_\t_\t_\n1\ta\ta\tDET\tx\n2\tcat\tcat\tNOUN\tx\n\n"


def test_files_of_words_and_tags(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(CONLL)
    (tmp_path / "a.conllu").write_text(CONLLU)
    assert read_tagged(tmp_path / "a.conll") == [
        (("the", "dog", "runs"), ("DT", "NN", "VB")),
        (("a", "cat"), ("DT", "NN")),
    ]
    assert read_tagged(tmp_path / "a.conllu") == [(("a", "cat"), ("DET", "NOUN"))]
    (tmp_path / "a.conll").write_text("the DT\ndog\n")
    with refused("unreadable"):
        read_tagged(tmp_path / "a.conll")


def test_words_are_whole_sentences_without_rare_tags(tmp_path: Path) -> None:
    sentences = ["\n".join(f"w{i}{j} {'AB'[j % 2]}" for j in range(4)) for i in range(30)]
    sentences[0] += "\nodd C"
    (tmp_path / "t.conll").write_text("\n\n".join(sentences))
    task = LabelledEntry(file=str(tmp_path / "t.conll"), kind="tags", sample=100)
    data = labelled.read(task)
    assert len(data.labels) in (96, 100) and set(data.labels.tolist()) == {0, 1}
    words = pd.Series(data.groups).value_counts()
    assert (words == 4).all() and data.types == [str(word) for word in data.texts[0]]
    texts = texts_of(LabelledTask(task))
    assert set(texts) == set(data.groups) and len(texts) == len(data.groups) / 4
    # A tag in as many sentences as there are splits is kept, one in fewer is not.
    tagged = [[*s.split("\n")[:4], "odd D"] for s in sentences]
    for number in range(probes.FOLDS):
        tagged[number][-1] = "often E"
    kept = [rows if n <= 2 * probes.FOLDS - 2 else rows[:4] for n, rows in enumerate(tagged)]
    kept[-1] = [*kept[-1], *["many F"] * probes.FOLDS]  # in one sentence
    (tmp_path / "t.conll").write_text("\n\n".join("\n".join(rows) for rows in kept))
    assert {*labelled.read(task.model_copy(update={"sample": None})).names} == {*"ABE"}
