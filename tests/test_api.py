"""The Python face: results of a run, analysis of a live model, the callback of a Trainer."""

import doctest
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
import yaml
from helpers import tiny, tiny_images
from helpers.association_tables import tidy_scores
from helpers.refused import refused
from typer.testing import CliRunner

import layerwise as lw
from layerwise.activations.extract import extract
from layerwise.activations.store import Activations
from layerwise.cli import app
from layerwise.config.settings import ExtractSettings, MetricsSettings, ScoringSettings
from layerwise.config.tasks import LabelledEntry
from layerwise.errors import LayerwiseError, in_any_case
from layerwise.io import hdf5, tables
from layerwise.metrics.registry import all_metrics, arrays_for
from layerwise.metrics.table import compute
from layerwise.models.load import load
from layerwise.project import ROOT, require
from layerwise.tasks.evaluate import evaluate
from layerwise.tasks.labelled import LabelledTask

TEXTS = tiny.texts(24)
LABELS = [text.split()[0] < "m" for text in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two models, with scores of one task, as the workflow writes them."""
    place = tmp_path_factory.mktemp("api")
    for name in ("llama", "bert"):
        loaded = load(name, tiny.entry(tiny.save(name, place / name)), "main", device="cpu")
        target = place / "results" / "activations" / name / "main" / "sentences.h5"
        target.parent.mkdir(parents=True)
        extract(
            loaded,
            corpus="sentences",
            prompts=[str(n) for n in range(len(TEXTS))],
            views=[TEXTS],
            target=target,
            attributes={},
            settings=ExtractSettings(
                tokens=("all", "drop_first"), protocols=("paper", "reference")
            ),
        )
        with Activations(target) as activations:
            metrics, prompts = compute(
                activations, MetricsSettings(metrics=("prompt_entropy", "rankme"))
            )
        path = place / "results" / "metrics" / name / "main" / "sentences.parquet"
        path.parent.mkdir(parents=True)
        tables.write(path, metrics)
        tables.write(path.with_suffix(".prompts.parquet"), prompts)
        path = place / "results" / "scores" / name / "main.parquet"
        path.parent.mkdir(parents=True)
        tables.write(path, scores(name))
    return place


def scores(model: str) -> pd.DataFrame:
    values = np.tile(0.5 + 0.1 * np.arange(4), (2, 1))
    table = tidy_scores(values, model=model).replace({"task0": "SICK", "task1": "STS12"})
    table = table.assign(score_low=table["main_score"] - 0.1, score_high=table["main_score"] + 0.1)
    readouts = [table.assign(readout=name) for name in ("residual", "final_norm")]
    return pd.concat(readouts).assign(n_runs=5, why=None, chance=0.0)


@pytest.fixture(scope="module")
def llama(folder: Path) -> tuple[Any, Any]:
    """A live model with a head, and its tokenizer."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder / "llama")
    return model, hf.AutoTokenizer.from_pretrained(folder / "llama")


def test_publish_writes_what_load_dataset_reads(folder: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    results, out = tmp_path / "results", tmp_path / "out"
    shutil.copytree(folder / "results", results)
    command = ["publish", str(results), str(out), "--licence", "cc-by-4.0"]
    found = CliRunner().invoke(app, command)
    assert isinstance(found.exception, LayerwiseError) and "explore.html" in str(found.exception)
    source = {"folder": "/home/me/private/llama"}
    model = {"source": source, "adapters": [{"folder": "/home/me/private/adapter"}]}
    document = {"models": {"llama": model}, "studies": {"a": {"kind": "power_law"}}}
    (results / "config.json").write_text(json.dumps(document))
    (results / "explore.html").write_text("<html>")
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.exception
    assert "hf upload OWNER/NAME" in found.output
    card = (out / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    names = [one["config_name"] for one in head["configs"]]
    assert names == ["metrics", "prompts", "scores"] and head["license"] == "cc-by-4.0"
    for name in names:
        rows = load_dataset(str(out), name, split="train").to_pandas()
        kept = lw.open(results).table(name, tokens=None)
        assert len(rows) >= len(kept) and {"model", "layer", "tokens"} <= set(rows)
    assert "/home/me" not in card and "transformers" in card and (out / "index.html").is_file()
    assert "not an empty folder" in str(CliRunner().invoke(app, command).exception)


@pytest.fixture
def run(folder: Path) -> lw.Results:
    return lw.open(folder / "results")


class TestRun:
    def test_lists_what_there_is(self, run: lw.Results) -> None:
        assert run.models == ["bert", "llama"]
        assert run.corpora == ["sentences"]
        assert "llama" in repr(run)

    def test_a_curve_is_one_call(self, run: lw.Results) -> None:
        curve = run.metrics("prompt_entropy", model="llama")
        assert curve["layer"].tolist() == [0, 1, 2, 3]
        assert set(curve["alpha"]) == {1.0}

    def test_all_dimensions_by_name(self, run: lw.Results) -> None:
        table = run.metrics(
            "prompt_entropy", "llama", tokens=None, protocol="reference", alpha=[1, 2]
        )
        assert len(table) == 2 * 2 * 4
        assert set(table["protocol"]) == {"reference"}

    def test_a_corpus_may_have_the_name_of_a_table(self, folder: Path, tmp_path: Path) -> None:
        place = tmp_path / "metrics/llama/main"
        place.mkdir(parents=True)
        for part in ("", ".prompts"):
            path = folder / f"results/metrics/llama/main/sentences{part}.parquet"
            shutil.copy(path, place / f"prompts{part}.parquet")
        run = lw.open(tmp_path)
        assert run.corpora == ["prompts"]
        assert len(run.metrics("prompt_entropy")) == 4

    def test_scores_are_of_the_main_readout(self, run: lw.Results) -> None:
        table = run.scores(model="llama", task="SICK")
        assert table["layer"].tolist() == [0, 1, 2, 3]
        assert set(table["readout"]) == {"final_norm"}
        assert len(run.scores()) == 16

    def test_prompts_are_a_table_of_their_own(self, run: lw.Results) -> None:
        assert len(run.table("prompts", model="bert", metric="prompt_entropy")) == 4 * len(TEXTS)

    def test_activations_are_a_labelled_view(self, run: lw.Results, folder: Path) -> None:
        with run.activations("llama") as data:
            assert data["pooled"].dims == ("layer", "prompt", "hidden")
            path = folder / "results/activations/llama/main/sentences.h5"
            with Activations(path) as file:
                expected = file.pooled("paper", "all", 2)
            np.testing.assert_array_equal(data["pooled"].sel(layer=2), expected)
            of_prompt = data["pooled"].sel(layer=2, prompt="3")
            np.testing.assert_array_equal(of_prompt, expected[3])
        with run.activations("llama", protocol=None, tokens="drop_first") as data:
            assert data["pooled"].dims == ("protocol", "layer", "prompt", "hidden")

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda run: run.metrics("prompt_entropi"), "did you mean 'prompt_entropy'"),
            (lambda run: run.metrics(model="lama"), "model 'lama' (did you mean 'llama'?)"),
            (lambda run: run.metrics(tokns="all"), "column 'tokns' (did you mean 'tokens'?)"),
            (lambda run: run.metrics(alpha=3), "choose from 1.0, 2.0, inf"),
            (lambda run: run.scores(task="SICKR"), "did you mean 'SICK'"),
            (lambda run: run.table("metric"), "did you mean 'metrics'"),
            (lambda run: run.activations(), "2 files of activations fit"),
            (lambda run: run.activations("bert", layr=2), "did you mean 'layer'"),
            (lambda run: run.plot("score_by_dept"), "did you mean 'score_by_depth'"),
            (lambda run: lw.open("/nowhere"), "/nowhere holds no results"),
        ],
    )
    def test_wrong_names_are_answered(self, run: lw.Results, call: Any, message: str) -> None:
        with pytest.raises(LayerwiseError) as caught:
            call(run)
        assert message in str(caught.value)


class TestPlot:
    def test_a_kind_with_its_defaults(self, run: lw.Results) -> None:
        figure = run.plot("score_by_depth")
        (ax,) = figure.axes  # a few models share it
        assert len({line.get_color() for line in ax.lines if len(line.get_xdata()) > 2}) == 2

    def test_on_axes_of_the_caller(self, run: lw.Results) -> None:
        figure, (left, right) = plt.subplots(1, 2)
        assert run.plot("score_by_depth", ax=left, models="llama") is figure
        assert lw.plot(run.metrics("rankme"), "rankme", ax=right) is figure
        assert left.lines and right.lines and plt.fignum_exists(figure.number)
        plt.close(figure)

    def test_a_table_of_analyse(self, llama: tuple[Any, Any]) -> None:
        table = lw.analyse(llama[0], TEXTS, llama[1], "rankme", LABELS)
        for metric in ("rankme", "linear_probe"):
            (ax,) = lw.plot(table, metric).axes
            line = max(ax.lines, key=lambda line: len(line.get_xdata()))
            expected = table.loc[table["metric"] == metric, "value"]
            np.testing.assert_allclose(line.get_ydata(), expected)
        with pytest.raises(LayerwiseError, match="did you mean 'rankme'"):
            lw.plot(table, "rankm")

    def test_a_study_of_the_config(self, folder: Path, tmp_path: Path) -> None:
        source, study = {"hub": "o/m"}, {"kind": "metrics_by_depth", "tokens": ["all"]}
        config = {
            "models": {"llama": {"source": source}, "bert": {"source": source}},
            "corpora": {"sentences": {"source": {"file": "a.txt"}}},
            "studies": {
                "entropy": study | {"metrics": ["prompt_entropy"]},
                "theirs": study | {"metrics": ["rankme"], "published": "paper"},
            },
            "published": {"paper": {"metrics": "metrics.parquet"}},
        }
        results = tmp_path / "results"
        shutil.copytree(folder / "results", results)
        (results / "config.json").write_text(json.dumps(config), encoding="utf-8")
        run = lw.open(results)
        assert run.studies == ["entropy", "theirs"]
        assert run.models == ["llama", "bert"]
        assert len(run.plot("entropy").axes) == 1
        (results / "published").mkdir()
        table = run.metrics(model="bert", tokens="all").assign(model="theirs")
        tables.write(results / "published" / "paper.metrics.parquet", table)
        (ax,) = run.plot("theirs").axes
        assert len(ax.lines)

    def test_several_panels_do_not_fit_on_one(self, run: lw.Results) -> None:
        figure, ax = plt.subplots()
        with refused("ambiguous"):
            run.plot("score_by_depth", ax=ax, column="model")
        plt.close(figure)

    def test_a_kind_without_its_table(self, run: lw.Results) -> None:
        with refused("missing_file"):
            run.plot("layer_similarity")


class TestAnalyse:
    def test_equals_the_workflow(
        self, run: lw.Results, folder: Path, llama: tuple[Any, Any]
    ) -> None:
        names = ["metric", "layer"]
        expected = run.metrics(model="llama").set_index(names).sort_index()
        for model in (llama[0], folder / "llama", str(folder / "llama")):
            tokenizer = llama[1] if model is llama[0] else None
            table = lw.analyse(model, TEXTS, tokenizer, ["prompt_entropy", "rankme"])
            table = table.set_index(names).sort_index()
            for column in ("value", "stderr", "n", "depth"):
                pd.testing.assert_series_equal(table[column], expected[column])
            assert (table["low"] < table["value"]).all()

    def test_leaves_a_model_as_it_was(self, llama: tuple[Any, Any]) -> None:
        model, tokenizer = llama
        model.train()
        model.model.layers[1].eval()
        before = {name: p.clone() for name, p in model.named_parameters()}
        tokenizer.pad_token = None
        lw.analyse(model, TEXTS, tokenizer, "rankme")
        assert model.training and not model.model.layers[1].training
        assert all(p.requires_grad for p in model.parameters())
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        assert tokenizer.pad_token_id is None
        assert not any(m._forward_hooks for m in model.modules())

    @pytest.mark.parametrize("kind", ["data set", "data frame", "txt", "jsonl", "tuple"])
    def test_takes_texts_from_anywhere(
        self, kind: str, llama: tuple[Any, Any], tmp_path: Path
    ) -> None:
        from datasets import Dataset

        frame = pd.DataFrame({"body": TEXTS})
        frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
        (tmp_path / "a.txt").write_text("\n".join(TEXTS), encoding="utf-8")
        texts = {
            "data set": Dataset.from_pandas(frame),
            "data frame": frame,
            "txt": tmp_path / "a.txt",
            "jsonl": str(tmp_path / "a.jsonl"),
            "tuple": tuple(TEXTS),
        }[kind]
        column = None if kind == "txt" else "body"
        table = lw.analyse(llama[0], texts, llama[1], "rankme", column=column)
        expected = lw.analyse(llama[0], TEXTS, llama[1], "rankme")
        pd.testing.assert_frame_equal(table, expected)

    @pytest.mark.parametrize("scales", [False, True])
    def test_every_door_scores_alike(self, folder: Path, tmp_path: Path, scales: bool) -> None:
        """The workflow, analyse, choose and the shell; a model that scales its vectors, or not."""
        path = tmp_path / "own.csv"
        labels = ["b" if label else "a" for label in LABELS]
        # Nothing is cut before the model's limit.
        texts = [*TEXTS[:-1], TEXTS[-1] * 100]
        pd.DataFrame({"text": texts, "label": labels}).to_csv(path, index=False)
        model = tmp_path / "llama"
        shutil.copytree(folder / "llama", model)
        kinds = {"": "Transformer", "1": "Normalize"} if scales else {}
        modules = [
            {"name": f"m{path}", "path": path, "type": f"sentence_transformers.models.{kind}"}
            for path, kind in kinds.items()
        ]
        (model / "modules.json").write_text(json.dumps(modules))
        evaluate(
            lambda: load("llama", tiny.entry(model), "main", device="cpu"),
            {"own": LabelledTask(LabelledEntry(file=str(path), kind="classification"))},
            extraction=ExtractSettings(tokens=("all",)),
            scoring=ScoringSettings(),
            keys={"own": "k"},
            key="k",
            output=tmp_path / "s.parquet",
        )
        expected = pd.read_parquet(tmp_path / "s.parquet").sort_values("layer")
        scores = expected["main_score"].tolist()
        table = lw.analyse(model, texts, metrics="rankme", labels=labels, threads=2)
        probe = table[table["metric"] == "linear_probe"]
        assert probe["value"].tolist() == scores
        assert probe["low"].tolist() == expected["score_low"].tolist()
        chosen = lw.choose(model, texts, labels, tokens="all").table
        np.testing.assert_allclose(chosen["score"], scores, rtol=1e-12)
        given = ["choose", str(model), "--labels", str(path), "--tokens", "all"]
        told = CliRunner().invoke(app, [*given, "--json", str(tmp_path / "told.json")])
        assert told.exit_code == 0, told.output
        np.testing.assert_allclose(pd.read_json(tmp_path / "told.json")["score"], scores)
        given += ["--max-length", "5", "--json", str(tmp_path / "told.json")]
        assert CliRunner().invoke(app, given).exit_code == 0
        short = lw.choose(model, texts, labels, tokens="all", max_length=5).table["score"]
        np.testing.assert_allclose(pd.read_json(tmp_path / "told.json")["score"], short)
        assert short.tolist() != scores

    @pytest.mark.parametrize("n_views", [0, 2])
    def test_by_default_all_metrics_that_the_texts_allow(
        self, n_views: int, llama: tuple[Any, Any]
    ) -> None:
        """And without attention."""
        views = [tiny.texts(24, seed=s) for s in range(1, n_views + 1)]
        table = lw.analyse(llama[0], TEXTS, llama[1], views=views)
        assert set(table["metric"]) == {
            name
            for name, metric in all_metrics().items()
            if metric.min_views <= n_views and "first_token_attention" not in metric.inputs
        }
        defaults = {"tokens": "all", "protocol": "paper", "alpha": 1.0, "normalization": "raw"}
        for name, value in defaults.items():
            assert set(table[name].dropna()) == {value}
        widths = table["value"] - table["low"]
        np.testing.assert_allclose(widths, 1.96 * table["stderr"], rtol=1e-4, atol=1e-12)

    def test_computes_as_asked(
        self, llama: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []

        def spy(file: Activations, settings: Any, threads: int) -> Any:
            asked.append((file.prompts, {*arrays_for(None)} & file.arrays, threads))
            return compute(file, settings, threads)

        monkeypatch.setattr("layerwise.metrics.table.compute", spy)
        given: dict[str, Any] = {
            "tokens": "drop_first",
            "protocols": ["paper", "reference"],
            "alphas": [1, 2],
            "normalizations": "logD",
        }
        copies, views = [TEXTS[0], *TEXTS], [[*TEXTS, TEXTS[0]]]
        table = lw.analyse(llama[0], copies, llama[1], "dime", views=views, threads=3, **given)
        assert asked == [(("0", *(str(n) for n in range(2, 25))), set(), 3)]
        for column, values in (
            ("metric", {"dime"}),
            ("tokens", {"drop_first"}),
            ("protocol", {"paper", "reference"}),
            ("alpha", {1.0, 2.0}),
            ("normalization", {"raw", "logD"}),
        ):
            assert set(table[column]) == values

    def test_sentence_transformers(self, folder: Path) -> None:
        st = pytest.importorskip("sentence_transformers")
        model = st.SentenceTransformer(str(folder / "bert"), device="cpu")
        table = lw.analyse(model, TEXTS, metrics="prompt_entropy")
        expected = lw.open(folder / "results").metrics("prompt_entropy", "bert")
        assert table["value"].tolist() == expected["value"].tolist()
        model.max_seq_length = 5
        values = [
            lw.analyse(model, TEXTS, metrics="prompt_entropy", max_length=n)["value"].tolist()
            for n in (None, 1000, 4)
        ]
        assert values[1] == expected["value"].tolist()
        assert values[0] != values[1] and values[2] not in values[:2]

    def test_images(self, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        path = tiny_images.save("vit", tmp_path / "vit")
        rng = np.random.default_rng(0)
        pictures = [
            image.fromarray(rng.integers(256, size=(40, 30, 3), dtype=np.uint8)) for _ in range(24)
        ]
        labels = ["a", "b"] * 12
        by_name = lw.analyse(path, pictures, metrics="rankme", labels=labels)
        live = lw.analyse(
            hf.AutoModel.from_pretrained(path),
            pictures,
            hf.AutoImageProcessor.from_pretrained(path, backend="pil"),
            "rankme",
            labels,
        )
        assert by_name["metric"].value_counts().to_dict() == {"rankme": 4, "linear_probe": 4}
        assert live["value"].tolist() == by_name["value"].tolist()
        assert len(lw.choose(path, pictures, labels).table) == 4

    @pytest.mark.parametrize(
        ("texts", "options", "message"),
        [
            (TEXTS, {"metrics": "rankmee"}, "did you mean 'rankme'"),
            (TEXTS, {"tokens": "al"}, "did you mean 'all'"),
            (TEXTS, {"labels": [1]}, "1 labels for 24 texts"),
            (TEXTS, {"metrics": "infonce"}, "augmented copies of each text (at least 1, got 0)"),
            ([3], {}, "got int at 0"),
            ("one text", {}, "expected a list"),
            (dict.fromkeys(TEXTS), {}, "expected a list"),
            (set(TEXTS), {}, "expected a list"),
            ("nothing.txt", {}, "no file nothing.txt"),
        ],
    )
    def test_mistakes_are_one_sentence(
        self, texts: Any, options: dict[str, Any], message: str, llama: tuple[Any, Any]
    ) -> None:
        with pytest.raises(LayerwiseError) as caught:
            lw.analyse(llama[0], texts, llama[1], **options)
        assert message in str(caught.value)

    def test_a_model_without_tokenizer(self) -> None:
        model = hf.AutoModel.from_config(tiny.FAMILIES["gpt_neox"]())
        with refused("missing_file"):
            lw.analyse(model, TEXTS)
        with refused("wrong_type"):
            lw.analyse({}, TEXTS)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_embed(
    llama: tuple[Any, Any], tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerwise.api.BLOCK_BYTES", 7 * 4 * 32 * 4)  # 7 texts at once
    given: dict[str, Any] = {"layers": [-1, 2], "pooling": "last_token", "batch_tokens": 40}
    out = tmp_path / "v.h5" if where == "file" else None
    found = lw.embed(*llama[:1], TEXTS, llama[1], out=out, **given)
    assert found.dims == ("layer", "text", "hidden") and found.shape == (2, len(TEXTS), 32)
    assert found.depth.values.tolist() == [1, pytest.approx(2 / 3)]
    ids = llama[1](TEXTS[5], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        output = llama[0](ids, output_hidden_states=True).hidden_states[-1][0, -1]
    np.testing.assert_allclose(found.sel(layer=3)[5], output, rtol=1e-4, atol=1e-5)
    if out:
        with hdf5.opened(out) as file:
            assert all(item.attrs["description"] for item in file.values())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"layers": 4}, "unknown_name"),
        ({"layers": -5}, "unknown_name"),
        ({"tokens": "al"}, "unknown_name"),
        ({"pooling": "avg"}, "unknown_name"),
        ({"readout": "final"}, "unknown_name"),
        ({"out": "/proc/none/x.h5"}, "disk"),
    ],
)
def test_embed_in_one_sentence(llama: tuple[Any, Any], options: Any, code: Any) -> None:
    with refused(code):
        lw.embed(llama[0], TEXTS, llama[1], **options)
    if "layers" in options:
        with refused("unknown_key"):
            lw.extract(llama[0], TEXTS, "x.h5", llama[1], token="all")


def test_a_lone_surrogate_is_read_as_the_replacement_character(llama: tuple[Any, Any]) -> None:
    odd, plain = ([*TEXTS[1:], f"a {c} b"] for c in ("\ud800", "\ufffd"))
    tables = [lw.analyse(llama[0], texts, llama[1], "rankme") for texts in (odd, plain)]
    pd.testing.assert_frame_equal(*tables)
    assert lw.choose(llama[0], odd, LABELS, llama[1]).sentence


def test_copies_of_a_text_count_once(llama: tuple[Any, Any]) -> None:
    """As in a workflow's corpus: copies would halve the standard errors."""
    metrics = ["prompt_entropy", "rankme", "infonce"]
    views = [[f"{text} again" for text in TEXTS]]
    once = lw.analyse(llama[0], TEXTS, llama[1], metrics, views=views)
    many = lw.analyse(llama[0], TEXTS * 4, llama[1], metrics, views=[views[0] * 4])
    pd.testing.assert_frame_equal(many, once)
    assert set(many["n"]) == {len(TEXTS)}


class TestCallback:
    @pytest.fixture
    def reported(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, float]]]:
        """What a reporter of the Trainer gets, by step."""
        from transformers.integrations import integration_utils

        logged: list[tuple[int, dict[str, float]]] = []

        class Reporter(hf.TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
                logged.append((state.global_step, logs))

        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tests", Reporter)
        return logged

    def train(self, folder: Path, callbacks: list[Any]) -> Any:
        from datasets import Dataset

        tokenizer = hf.AutoTokenizer.from_pretrained(folder / "llama")
        torch.manual_seed(0)
        data = Dataset.from_dict({"input_ids": tokenizer(tiny.texts(24))["input_ids"]})
        arguments = hf.TrainingArguments(
            folder / "out",
            max_steps=4,
            per_device_train_batch_size=4,
            logging_steps=1,
            report_to=["tests"],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = hf.Trainer(
            hf.AutoModelForCausalLM.from_pretrained(folder / "llama"),
            arguments,
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=callbacks,
            data_collator=hf.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        trainer.train()
        return trainer

    def test_reports_every_layer_and_trains_alike(
        self, folder: Path, reported: list[tuple[int, dict[str, float]]]
    ) -> None:
        def losses(trainer: Any) -> list[float]:
            return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

        plain = losses(self.train(folder, []))
        reported.clear()
        callback = lw.LayerMetrics(TEXTS, every=2, metrics=["rankme", "prompt_entropy"])
        trainer = self.train(folder, [callback])
        assert losses(trainer) == plain
        values = [(step, logs) for step, logs in reported if "rankme/layer_00" in logs]
        assert [step for step, _ in values] == [0, 2, 4]
        assert {len(logs) for _, logs in values} == {8}
        assert trainer.state.log_history[0]["rankme/layer_03"] == values[0][1]["rankme/layer_03"]
        trained = lw.analyse(
            trainer.model, TEXTS, callback.tokenizer or trainer.processing_class, "rankme"
        )
        assert trained["value"].tolist() == [
            values[-1][1][f"rankme/layer_{layer:02d}"] for layer in range(4)
        ]

    @pytest.mark.parametrize("tokens", ["all", "drop_first"])
    def test_values_of_metrics_and_probes_are_those_of_analyse(
        self, folder: Path, tokens: str
    ) -> None:
        network = hf.AutoModelForCausalLM.from_pretrained(folder / "llama").train()
        tokenizer = hf.AutoTokenizer.from_pretrained(folder / "llama")
        callback = lw.LayerMetrics(TEXTS, metrics=["rankme"], labels=LABELS, tokens=tokens)
        values = callback.values(network, tokenizer)
        assert network.training
        table = lw.analyse(network, TEXTS, tokenizer, "rankme", labels=LABELS, tokens=tokens)
        expected = {
            f"{metric}/layer_{layer:02d}": value
            for metric, layer, value in table[["metric", "layer", "value"]].itertuples(index=False)
        }
        neighbours = {f"neighbours/layer_{layer:02d}" for layer in range(4)}
        assert values.keys() == expected.keys() | neighbours
        assert {name: values[name] for name in expected} == pytest.approx(expected)
        scores = [values[name] for name in neighbours]
        assert all(0 <= score <= 1 for score in scores)


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(LayerwiseError, match=r"pip install 'layerwise\[tasks\]'"):
        require("no_such_package", "tasks")
    assert require("json", "tasks").dumps(1) == "1"


WITHOUT_EXTRAS = """
import sys
from importlib.machinery import PathFinder

class Base(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in EXTRAS else super().find_spec(name, path, target)

EXTRAS = set(sys.argv[2].split(","))
sys.meta_path = [Base if finder is PathFinder else finder for finder in sys.meta_path]
import layerwise as lw
from layerwise import api
texts = [f"the {noun} is {kind}" for noun in "abcdef" for kind in ("red", "blue", "green", "tall")]
labels = ["blue" in text for text in texts]
table = lw.analyse(sys.argv[1], texts, labels=labels)
lw.plot(table, "prompt_entropy")
print(lw.choose(sys.argv[1], texts, labels).sentence)
try:
    from layerwise.corpora.views import respaced
    respaced("text")
except lw.LayerwiseError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_base_suffices_to_analyse(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {
        re.split(r"[<>=]", package)[0].replace("-", "_")
        for extra, packages in project["optional-dependencies"].items()
        if extra not in ("all", "dev", "docs")
        for package in packages
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, folder / "llama", ",".join(names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'layerwise[workflow]'" in done.stdout


@pytest.mark.parametrize("name", ["layerwise", "layerwise.api", "layerwise.run.results"])
def test_examples(
    name: str, folder: Path, llama: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    space = {"model": llama[0], "tokenizer": llama[1], "texts": TEXTS, "labels": LABELS}
    result = doctest.testmod(importlib.import_module(name), extraglobs=space)
    assert result.attempted and not result.failed


def test_names_of_the_package() -> None:
    assert dir(lw) == sorted([*lw.__all__, "__version__"])
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert lw.__version__ == stated
    code = "import layerwise as lw; print(lw.metrics.rankme([[1.0, 0.0], [0.0, 1.0]]))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(said.stdout) == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("key", ["corpora", "tasks", "over"])
def test_a_table_of_a_study_is_drawn_as_it_was_made(tmp_path: Path, key: str) -> None:
    study = {"kind": "metric_vs_score", "corpora": ["task texts"], "over": "tasks"}
    other = {"corpora": ["task texts", "own"], "tasks": ["STS13"], "over": "layers"}
    corpora = {name: {"source": {"task": name}} for name in ("STS12", "STS13")}
    document = {
        "models": {"m": {"source": {"hub": "o/m"}}},
        "corpora": corpora | {"own": {"source": {"file": "own.txt"}}},
        "tasks": {"STS12": {}, "STS13": {}},
        "studies": {"s": study},
    }
    (tmp_path / "scores/m").mkdir(parents=True)
    tables.write(tmp_path / "scores/m/main.parquet", scores("m").assign(revision="main"))
    (tmp_path / "config.json").write_text(json.dumps(document | {"results": str(tmp_path)}))
    with refused("missing_file") as caught:
        lw.open(tmp_path).draw("s", **{key: other[key]})
    assert f"made with other {key};" in str(caught.value)


def test_checkpoints_are_in_training_order(tmp_path: Path) -> None:
    for revision in ("main", "step16", "step128", "step2"):
        path = tmp_path / f"scores/m/{revision}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        tables.write(path, scores("m").assign(revision=revision))
    table = lw.open(tmp_path).table("scores", readout=None)
    assert list(table["revision"].unique()) == ["step2", "step16", "step128", "main"]
    assert list(table["step"].dropna().unique()) == [2, 16, 128]
    assert "<td>m</td>" in lw.open(tmp_path)._repr_html_()


def test_names_in_any_case_prefer_the_exact_one() -> None:
    assert in_any_case("pythia", ["Pythia", "pythia"]) == "pythia"
    assert in_any_case("PYTHIA", ["bert", "Pythia"]) == "Pythia"
    assert in_any_case("gpt", ["bert"]) == "gpt"
