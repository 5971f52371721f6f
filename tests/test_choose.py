"""`layerwise choose`: a layer from labels."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import tiny
from helpers.refused import refused
from typer.testing import CliRunner

import layerwise as lw
from layerwise import choosing, progress, stats
from layerwise.analysis import embed_labels, labels_of, prompts_of
from layerwise.choosing import Choice, answer, choose, compare, interval, plot
from layerwise.cli import app
from layerwise.config.tasks import LabelledEntry
from layerwise.errors import Code, LayerwiseError
from layerwise.models.load import load
from layerwise.section import parse
from layerwise.tasks import labelled, probes
from layerwise.tasks.evaluate import Score


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("models") / "llama")


def run(*given: object) -> tuple[int, str]:
    """Exit status, and what it printed or raised."""
    result = CliRunner().invoke(app, ["choose", *map(str, given), "--threads", "1"])
    assert isinstance(result.exception, LayerwiseError | None), result.exception
    return result.exit_code, f"{result.output}\n{result.exception or ''}"


def test_an_export_command_can_be_pasted() -> None:
    choice = Choice(7, "", "", "", pd.DataFrame(), tokens="drop_first")
    command = choice.export_command("package:llm/a b#Q4_1.gguf", revision="step 1")
    assert shlex.split(command) == [
        *("layerwise", "export", "package:llm/a b#Q4_1.gguf", "Q4_1-7", "--layer", "7"),
        *("--tokens", "drop_first", "--pooling", "mean", "--revision", "step 1"),
    ]
    command = choice.export_command("package:gt_mini/models/a")
    assert shlex.split(command)[3] == "gt_mini-7"


def test_analyse_writes_what_python_gives(folder: Path, tmp_path: Path) -> None:
    """Texts are cut alike, at the model's limit."""
    texts = tiny.texts(24, longest=400)
    pd.DataFrame({"review": texts}).to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    files = {"--csv": "t.csv", "--json": "t.json", "--plot": "t.png"}
    asked = [x for key, name in files.items() for x in (key, str(tmp_path / name))]
    asked += ["--text", "review", "--threads", "1"]
    command = ["analyse", str(folder), str(tmp_path / "t.tsv"), *asked]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.exception
    assert "prompt_entropy" in result.output
    expected = lw.analyse(folder, texts)
    for table in (pd.read_csv(tmp_path / "t.csv"), pd.read_json(tmp_path / "t.json")):
        np.testing.assert_allclose(table["value"], expected["value"], rtol=1e-5)
    assert (tmp_path / "t.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--metric", "entropi"], "unknown_name"),
        (["--tokens", "some"], "unknown_name"),
        (["--text", "no"], "unknown_name"),
        (["--plot", "x.doc"], "unknown_value"),
    ],
)
def test_analyse_in_one_sentence(tmp_path: Path, more: list[str], code: Code) -> None:
    (tmp_path / "t.csv").write_text("text\na\n")
    result = CliRunner().invoke(app, ["analyse", "no/model", str(tmp_path / "t.csv"), *more])
    assert isinstance(result.exception, LayerwiseError) and result.exception.code == code


def test_version_and_completion() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"layerwise {version('layerwise')}\n"
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output


def test_from_labels(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed is what probes of the same vectors give."""
    caplog.set_level("INFO", "layerwise.progress")
    monkeypatch.setattr(progress, "LOG_EVERY_S", 0)
    texts = list(dict.fromkeys(tiny.texts(90)))[:80]
    frame = pd.DataFrame({"text": texts, "label": [str(len(t) > 80) for t in texts]})
    frame.to_csv(tmp_path / "l.csv", index=False)
    status, said = run(folder, "--labels", tmp_path / "l.csv", "--tokens", "all")
    assert status == 0, said
    assert "Read 80 of 80 labelled rows, classification: 2 classes (" in said
    data, n = choosing.read_labels(choosing.task_of(tmp_path / "l.csv"), 1000)
    found = choose(folder, data, tokens="all")
    assert n == 80 and len(found.table) == 4
    counted = [m for m in caplog.messages if "scores: 4 of 4 layer" in m]
    assert len(counted) == 2, "probes count layers as they are scored"
    embedded = embed_labels(load("m", tiny.entry(folder), "main", device="cpu"), data, "all")
    vectors = [embedded[1][rows] for rows in data.rows_of_texts]
    score = labelled.layer_score(data, vectors).main_score
    assert found.table.loc[1, "score"] == pytest.approx(score)
    (ax,) = plot(found, tmp_path / "l.png").axes
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    output, lead = found.table["score"].iloc[-1], found.table["difference_high"]
    assert np.isclose(band.max(), 100 * (output + lead.max())), "bands are of differences"


@pytest.mark.parametrize(
    ("name", "asked", "kind"),
    [
        ("AUROC", None, "classes"),
        ("accuracy", "accuracy", "classes"),
        ("macro F1", "macro_f1", "classes"),
        ("Spearman's correlation", "spearman", "numbers"),
    ],
)
def test_rare_classes_have_a_score_that_the_majority_does_not_fool(
    folder: Path, name: str, asked: str | None, kind: str
) -> None:
    texts = list(dict.fromkeys(tiny.texts(90)))[:80]
    longest = sorted(texts, key=len)[-9:]
    labels: Any = [text in longest for text in texts] if kind == "classes" else [*map(len, texts)]
    choice = lw.choose(folder, texts, labels, score=asked, kind=None)
    assert choice.score == f"{name} of a linear probe"
    assert ("largest class has an accuracy of 0.89." in choice.reason) == (name == "AUROC")
    with refused("unknown_name"):
        lw.choose(folder, texts, labels, score="r2" if kind == "classes" else "auroc")


def test_pairs_are_known_by_their_columns(folder: Path, tmp_path: Path) -> None:
    texts = tiny.texts(60)
    pairs = pd.DataFrame({"first": texts[:30], "second": texts[30:], "score": np.arange(30.0)})
    pairs.to_parquet(tmp_path / "p.parquet")
    data, _ = choosing.read_labels(choosing.task_of(tmp_path / "p.parquet"), 25)
    assert data.kind == "pairs" and len(data.labels) == 25
    for labels, kind in ((np.arange(60.0), "regression"), ([0, 1] * 30, "classification")):
        table = pd.DataFrame({"text": map(str, range(60)), "label": labels})
        table.to_csv(tmp_path / "l.csv", index=False)
        assert choosing.task_of(tmp_path / "l.csv").kind == kind


@pytest.mark.parametrize(("name", "separator"), [("l.tsv", "\t"), ("l.csv", ";"), ("l.csv", ",")])
def test_own_columns_and_separators(tmp_path: Path, name: str, separator: str) -> None:
    file = tmp_path / name
    rows = pd.DataFrame({"review": [f"good, {k}; no" for k in range(60)], "n": ["a", "b"] * 30})
    rows.to_csv(file, sep=separator, index=False)
    task = choosing.task_of(file, ["review"], "n")
    data, n = choosing.read_labels(task, 100)
    assert n == 60 and task.kind == "classification" and data.texts[0][3] == "good, 3; no"
    assert choosing.task_of(file, ["review", "n"], "n").kind == "pairs"
    for columns in ((), ["revew"], ["a", "b", "c"]):
        with refused("invalid" if len(columns) == 3 else "unknown_name"):
            choosing.task_of(file, columns, "n")


@pytest.mark.parametrize("row", ["  ,1,a", "b,,a", "b,x,a", "b,1,"])
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str) -> None:
    good = "".join(f'"text\n{k}",{k},g{k}\n' for k in range(30))
    (tmp_path / "l.csv").write_text(f"text,label,g\n{good}{row}\n")
    entry = {"kind": "regression", "group": "g", "file": str(tmp_path / "l.csv")}
    with pytest.raises(LayerwiseError, match="line 62"):
        labelled.read(parse(LabelledEntry, entry))


def test_words_and_tags_are_known_by_their_file(tmp_path: Path) -> None:
    lines = [f"w{k % 97} {'N' if k % 7 > 3 else 'V'}\n" + "\n" * (k % 5 == 4) for k in range(300)]
    (tmp_path / "d.conll").write_text("".join(lines))
    data, n = choosing.read_labels(choosing.task_of(tmp_path / "d.conll"), 100)
    assert data.kind == "tags" and len(data.labels) <= 100 and n == 300
    assert len(data.types or ()) == len(data.labels)


def test_a_rare_class_is_in_the_sample(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": [f"text {k}" for k in range(3000)], "label": "common"})
    frame.loc[:299, "label"] = "other"
    frame.loc[1000:1004, "label"] = "rare"
    frame.to_parquet(tmp_path / "l.parquet")
    for seed in range(5):
        data, n = choosing.read_labels(choosing.task_of(tmp_path / "l.parquet", seed=seed), 100)
        counts = np.bincount(data.labels)
        assert data.seed == seed, "of the splits"
        assert n == 3000 and counts.sum() == 100 and counts[2] == 5 and 5 <= counts[0] < 25
    with refused("too_few"):
        choosing.read_labels(choosing.task_of(tmp_path / "l.parquet"), 12)
    with refused("too_few"):
        choosing.read_labels(choosing.task_of(tmp_path / "l.parquet"), 16)


def chosen(*layers: Score, kind: str = "classification", within: float | None = None) -> Choice:
    """The answer of some layers' scores."""
    measure = probes.OF_KIND[kind][0]
    labels = np.arange(40) % 2 if kind == "classification" else np.arange(40.0)
    rows = labelled.Labels(kind, [TEXTS], labels, TEXTS, names=("a", "b"), measure=measure)
    if kind != "classification":
        rows = replace(rows, names=())
    return answer(compare(layers, measure), rows, within)


def test_labels_that_give_no_score() -> None:
    none = Score(None, n_runs=30, why="the similarities are alike")
    with refused("undefined"):
        compare([none, none], "spearman")


def test_the_layer_of_the_highest_score_is_chosen() -> None:
    output = np.arange(200) < 120
    better, bit_better = output | (np.arange(200) > 188), output | (np.arange(200) > 198)
    choice = chosen(*map(of_rows, (output, better, bit_better, output)))
    assert choice.advice == "Use layer 1 of 3." and choice.reason.startswith("It scores 0.66 (95%")
    assert "Difference from the output: 5.5 points (95% CI 1." in choice.reason
    saved = " The blocks after it, 67% of the model's, need not run."
    assert choice.reason.endswith(f", significant.{saved}")
    assert choice.table["compute_saved"].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
    row = choice.table.iloc[1]
    assert row["difference"] == pytest.approx(11 / 200) and 0 < row["difference_low"] < 11 / 200
    assert ", not significant." in chosen(*map(of_rows, (bit_better, output))).reason


def test_the_earliest_layer_that_is_not_much_worse() -> None:
    output = np.arange(400) < 300
    near = output.copy()
    near[[0, 398, 399]] = False, True, True
    layers = [*map(of_rows, (np.arange(400) < 200, np.arange(400) < 290, output, near, output))]
    answers = {within: chosen(*layers, within=within) for within in (0, 2.4, 2.6, 100)}
    assert [one.layer for one in answers.values()] == [2, 2, 1, 0]
    assert "Difference from the output: -2.5 points" in answers[2.6].reason
    alone = chosen(layers[0], layers[4], within=5)
    assert alone.layer == 1
    assert alone.reason.endswith("and no earlier layer scores at most 5 points below it.")


def test_ties_are_reported() -> None:
    all_right, most = of_rows(np.ones(100, bool)), of_rows(np.arange(100) < 90)
    choice = chosen(all_right, all_right, all_right)
    assert choice.layer == 2 and choice.reason.startswith("It scores 1.00 (95% CI 0.96 to 1.00)")
    assert choice.reason.endswith("these labels are too easy.")
    choice = chosen(most, all_right, all_right)
    assert choice.layer == 2 and choice.reason.endswith("and no other layer scores higher.")


def test_a_score_that_guessing_reaches_is_said() -> None:
    usual = np.arange(400) < 360
    output = usual & (np.arange(400) % 10 > 0)
    choice = chosen(*(replace(of_rows(one), baseline=0.88) for one in (usual, output)))
    assert choice.layer == 0 and "not significantly better than guessing (0.88)." in choice.reason


def test_splits_that_share_training_rows_widen_the_intervals() -> None:
    rng = np.random.default_rng(0)
    layers = [of_rows(rng.random(200) < share) for share in (0.6, 0.7, 0.65)]
    trained = [replace(one, n_train=160) for one in layers]
    widths = {}
    for kind in ("classification", "regression"):
        alone, wider = (compare(x, probes.OF_KIND[kind][0]) for x in (layers, trained))
        ends = [(t["difference_high"] - t["difference"])[:2] for t in (wider, alone)]
        widths[kind] = np.mean(ends[0] / ends[1])
    assert widths == pytest.approx({"classification": 2**0.5, "regression": 4.1**0.5})


@pytest.mark.parametrize("kind", ["classification", "regression", "pairs"])
def test_intervals_stay_in_the_range_of_the_score(kind: str) -> None:
    """Of few and extreme rows, and wider than those of one layer."""
    rng = np.random.default_rng(0)
    layers = []
    for share in (0.96, 0.9, 0.97, 0.93):
        part = rng.random(24) < share if kind == "classification" else rng.random(24)
        layers.append(of_rows(part if kind == "classification" else part - part.mean() + share))
    table = compare(layers, probes.OF_KIND[kind][0])
    assert (table["high"] <= 1).all() and (kind == "regression" or (table["low"] >= -1).all())
    assert (table["low"] < table["score"]).all()
    assert (table["score"] < table["high"] + 1e-12).all()
    low = [one.score_low for one in layers]
    assert (table["low"] < low).all()


def test_a_perfect_correlation_has_an_interval() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(loc=(0, 0.5, 0), size=(40, 3))
    rows[:, 0] += 1 - rows[:, 0].mean()
    rows[:, 2] = 1
    low, high = interval(stats.simultaneous_ci(rows), "spearman")
    assert 0 < low[0] < 1 and low[2] == 1 and high[[0, 2]].tolist() == [1, 1]
    assert -1 < low[1] < rows[:, 1].mean() < high[1] < 1


def test_the_printed_command_exports_what_was_scored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With long texts, by models that scale embeddings and not."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    texts = [f"{text} {text}" for text in dict.fromkeys(tiny.texts(90))][:80]
    frame = pd.DataFrame({"text": texts, "label": [str(len(t) > 160) for t in texts]})
    frame.to_csv(tmp_path / "l.csv", index=False)
    bert = modules.Transformer(str(tiny.save("bert", tmp_path / "bert")))
    scaling, first_token = tmp_path / "scaling", tmp_path / "cls"
    for path, *further in (
        (scaling, modules.Pooling(32), modules.Normalize()),
        (first_token, modules.Pooling(32, pooling_mode="cls")),
    ):
        SentenceTransformer(modules=[bert, *further], device="cpu").save(str(path))
    monkeypatch.chdir(tmp_path)
    asked = ["--labels", tmp_path / "l.csv", "--max-length", "24"]
    for model, more in (
        (folder, ["--within", "100"]),  # layer 0
        (scaling, ["--within", "100", "--tokens", "drop_sinks"]),
        (first_token, ["--within", "100"]),
    ):
        status, said = run(model, *asked, *more)
        assert status == 0, said
        command = shlex.split(said.strip().rpartition("To save it: ")[2])[1:]
        assert CliRunner().invoke(app, [*command, "--threads", "1"]).exit_code == 0
        saved = SentenceTransformer(command[2], device="cpu", trust_remote_code=True)
        options = dict(zip(command[3::2], command[4::2], strict=True))
        loaded = load("m", tiny.entry(model, max_length=24), "main", device="cpu")
        data, _ = choosing.read_labels(choosing.task_of(tmp_path / "l.csv"), 1000)
        wanted = embed_labels(loaded, data, options["--tokens"])[int(options["--layer"])]
        assert options["--pooling"] == ("cls" if model == first_token else "mean")
        np.testing.assert_allclose(saved.encode(texts), wanted, atol=2e-5)


def of_rows(right: np.ndarray) -> Score:
    """The score of a layer that has some rows right."""
    p, n = float(right.mean()), len(right)
    margin = 1.96 * np.sqrt(p * (1 - p) / n)
    return Score(p, p - margin, p + margin, n, values=right.astype(float))


def test_files_that_are_not_drawn_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample is that of all files read."""
    read = []

    def read_file(path: str, name: str) -> bytes:
        read.append(name)
        return Path(path).read_bytes()

    monkeypatch.setattr("media.sources.read_file", read_file)
    for k in range(120):
        (tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
        (tmp_path / "ab"[k % 2] / f"{k}.png").write_bytes(b"%d" % k)
    every = prompts_of(tmp_path)
    labelled_ones = labels_of(every, [one.name[0] for one in every])
    expected = choosing.sample_labels(replace(labelled_ones, seed=1), 30)
    read.clear()
    data, n = choosing.read_folder(tmp_path, 30, 1)
    assert (n, len(read)) == (120, 30) and data.texts == expected.texts
    assert data.labels.tolist() == expected.labels.tolist() and data.seed == 1


def test_what_has_no_columns_takes_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    for given in (tmp_path / "t.txt", tmp_path):
        asked = ["analyse", "no/model", str(given), "--text", "review"]
        with refused("conflict"):
            CliRunner().invoke(app, asked, catch_exceptions=False)
        with refused("conflict"):
            lw.analyse("no/model", given, column="review")


def copies(n: int) -> tuple[list[str], list[str]]:
    """Different texts with a class each, and after them near-copies of the first ones."""
    texts = [f"{text} It was {k} days ago." for k, text in enumerate(tiny.texts(60, shortest=15))]
    changes = (lambda t: t + " .", lambda t: t.upper(), lambda t: t[:-1] + "!")
    near = [changes[k % 3](text) for k, text in enumerate(texts[:n])]
    return [*texts, *near], [str(k % 2) for k in [*range(60), *range(n)]]


def of_a_task(folder: Path, texts: list[str], labels: list[str]) -> labelled.Labels:
    pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / "l.csv", index=False)
    return labelled.read(choosing.task_of(folder / "l.csv"))


def of_words(folder: Path, texts: list[str], labels: list[str]) -> labelled.Labels:
    lines = [
        "".join(f"{word} {tag}\n" for word in text.split())
        for text, tag in zip(texts, labels, strict=True)
    ]
    (folder / "l.conll").write_text("\n".join(lines))
    data = labelled.read(choosing.task_of(folder / "l.conll"))
    rows = {word.sentence: k for k, word in enumerate(data.texts[0])}
    return data.rows([rows[text] for text in texts])


@pytest.mark.parametrize(
    "read",
    [
        of_a_task,
        of_words,
        lambda folder, *rows: labels_of(*rows),
        lambda folder, *rows: choosing.read_rows(*rows, None, None),
    ],
    ids=["task", "words", "analyse", "choose"],
)
def test_near_copies_stay_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read: Callable[..., labelled.Labels]
) -> None:
    texts, labels = copies(5)
    groups = read(tmp_path, texts, labels).groups
    assert "10 of 65 rows are near-copies" in caplog.text and len({*groups}) == 60
    assert groups[:5] == groups[60:]


def test_what_near_copies_link(tmp_path: Path) -> None:
    texts, _ = copies(2)
    # The copy of row 0 is in the group of row 5, which joins all three.
    groups = labelled.linked([texts], [*map(str, range(60)), "5", "61"])
    assert groups[0] == groups[5] == groups[60] and groups[1] == groups[61] != groups[0]
    assert len({*labelled.linked([texts, [*map(str, range(62))]])}) == 62  # pairs
    pairs = combinations(range(62), 2)
    brute = [frozenset(pair) for pair in pairs if alike(*(texts[row] for row in pair))]
    assert {frozenset(pair) for pair in labelled.near_copies([texts])} == set(brute)
    spaced = [texts[0] + " " * k for k in range(62)]
    with refused("too_few"):
        of_a_task(tmp_path, spaced, [str(k % 2) for k in range(62)])


def alike(*texts: str) -> bool:
    from sklearn.feature_extraction.text import CountVectorizer

    counts = CountVectorizer(analyzer="char_wb", ngram_range=(5, 5), binary=True)
    a, b = counts.fit_transform(texts).toarray()
    return bool(a @ b >= 0.9 * np.sqrt(a.sum() * b.sum()))


def test_a_binary_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff\xfe" * 40)
    status, said = run(folder, "--labels", tmp_path / "l.csv")
    assert status == 1 and "has NUL bytes" in said


TEXTS = [f"text number {k}" for k in range(40)]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"text": TEXTS, "label": ["a"] * 40}, "All 40 labels are 'a'"),
        (
            {"text": TEXTS, "lable": ["a", "b"] * 20},
            "has no column 'label' (did you mean 'lable'?)",
        ),
    ],
)
def test_bad_labels(
    columns: dict[str, list[object]], told: str, folder: Path, tmp_path: Path
) -> None:
    pd.DataFrame(columns).to_parquet(tmp_path / "l.parquet")
    status, said = run(folder, "--labels", tmp_path / "l.parquet")
    assert status == 1 and told in said


def test_texts_alone_cannot_tell_a_layer(folder: Path) -> None:
    assert "choose needs labels" in run(folder)[1]
    for given in ((folder,), (folder, TEXTS), (np.zeros((3, 5, 4)),)):
        with refused("missing"):
            choose(*given)
