"""What the scripts hand on, of a config in which everything exists twice and differs."""

import json
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from helpers import tiny
from helpers.association_tables import tidy_metrics, tidy_scores
from helpers.scripts import script

from layerwise.config import Config
from layerwise.corpora.prompts import Prompts
from layerwise.io.files import versions
from layerwise.run import script as jobs
from layerwise.run.plan import Plan
from layerwise.tasks.task import set_up

CONFIG: dict[str, Any] = {
    "models": {
        "007": {
            "source": {"hub": "o/first"},
            "revisions": ["step1", "main"],
            "dtype": "bfloat16",
            "poolings": ["max"],
            "max_length": 9,
        },
        "m": {"source": {"hub": "o/second"}, "tokens": ["drop_first"], "readouts": ["residual"]},
    },
    "corpora": {
        "c": {
            "source": {"hub": "o/news"},
            "views": {"n": 0},
            "protocols": ["reference"],
            "tokens": ["all"],
        },
        "d": {"source": {"task": "STS12"}, "views": {"n": 0}, "perturb": {"repetition": 0.5}},
        "e": {
            "source": {
                "generate": {"model": "007", "prompts": {"hub": "o/q"}, "max_new_tokens": 7}
            },
            "views": {"n": 0},
        },
    },
    "tasks": {"STS12": {}, "own": {"file": "own.csv", "kind": "classification"}},
    "extract": {"threads": 1, "device": "cpu", "sink_ratio": 3.0, "arrays": ["dimension"]},
    "scoring": {"normalize": True, "poolings": ["mean"], "sub_scores": True},
    "association": {"own_texts": {"c": "own"}, "directions": {"curvature": -1}},
    "studies": {
        "one": {
            "kind": "metric_vs_score",
            "models": ["007"],
            "tasks": ["STS12"],
            "corpora": ["task texts"],
            "over": "tasks",
        },
        "two": {
            "kind": "metric_vs_score",
            "models": ["m"],
            "tasks": ["own"],
            "corpora": ["c"],
            "metrics": ["curvature"],
        },
    },
}


STUDY = {"kind": "score_by_depth", "tasks": ["own"]}


class ReachedError(Exception):
    """What was to be called was called."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the last function that a script called, by name; positions as numbers."""
    taken: dict[str, Any] = {}

    def catch(target: str) -> None:
        def reached(*given: Any, **named: Any) -> None:
            taken.update(enumerate(given))
            taken.update(named)
            raise ReachedError

        monkeypatch.setattr(target, reached)

    taken["catch"] = catch
    return taken


def job(plan: Plan, names: dict[str, str], **more: Any) -> Any:
    """A job as `layerwise.run.script.Job`, without Snakemake."""
    given: dict[str, Any] = {"key": "k", "threads": 5, "output": ["out"], "input": []}
    return SimpleNamespace(plan=plan, config=plan.config, names=names, **given | more)


def plan() -> Plan:
    return Plan(Config.of(CONFIG))


def run(name: str, of: Any) -> None:
    with pytest.raises(ReachedError):
        script(name).main(of)


@pytest.mark.parametrize("model", ["007", "m"])
def test_a_model_is_scored_by_its_own_settings(seen: dict[str, Any], model: str) -> None:
    seen["catch"]("layerwise.tasks.evaluate.evaluate")
    run("evaluate_model", job(plan(), {"model": model, "revision": "main"}))
    scoring, extraction = seen["scoring"], seen["extraction"]
    first = model == "007"
    assert scoring.poolings == (("max",) if first else ("mean",))
    assert scoring.readouts == (("final_norm",) if first else ("residual",))
    assert scoring.normalize and scoring.sub_scores
    assert extraction.dtype == ("bfloat16" if first else "float32")
    assert extraction.tokens == (("all",) if first else ("drop_first",))
    assert list(seen[1]) == list(seen["keys"]) == (["STS12"] if first else ["own"])
    assert seen["keys"] == plan().score_keys(model, "main")
    assert seen["key"] == "k" and seen["output"] == Path("out")


@pytest.mark.parametrize(
    ("model", "corpus"), [("007", "c"), ("m", "c"), ("m", "d-repetition-0.5")]
)
def test_a_corpus_is_read_by_its_own_settings(
    seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: str, corpus: str
) -> None:
    corpus = next(name for name in plan().config.corpora if name[0] == corpus[0])
    texts = Prompts(corpus, ["1"], [["a text"]], "hash")
    opened: list[Any] = []

    def open_model(*given: Any) -> Any:
        opened.append(given)
        return nullcontext(SimpleNamespace(weights="w", device="cpu"))

    monkeypatch.setattr(jobs, "open_model", open_model)
    monkeypatch.setattr("layerwise.corpora.prompts.read", lambda *_: texts)
    seen["catch"]("layerwise.activations.extract.extract")
    names = {"model": model, "revision": "step1", "corpus": corpus}
    files = SimpleNamespace(corpus="c.parquet")
    compared: dict[str, str] = {}
    module = script("extract_activations")
    monkeypatch.setattr(module, "arrays_of", lambda *given: compared.update(given[-1]))
    with pytest.raises(ReachedError):
        module.main(job(plan(), names, input=files, files=lambda _: []))
    about = {"weights_sha256": "w", "device": "cpu", "versions": json.dumps(versions())}
    assert compared == about | {"pass": plan().key("pass", **names)}
    settings, perturb = seen["settings"], seen["perturb"]
    ((_, name, revision, extraction),) = opened
    assert (name, revision) == (model, "step1") and extraction == settings
    assert settings.protocols == (("reference",) if corpus == "c" else ("paper",))
    assert settings.arrays == ("dimension",)
    assert settings.tokens == (("drop_first",) if (model, corpus) == ("m", "d") else ("all",))
    assert settings.sink_ratio == 3.0
    assert settings.dtype == ("bfloat16" if model == "007" else "float32")
    assert (perturb.repetition if perturb else None) == (None if corpus == "c" else 0.5)
    assert seen["corpus"] == corpus and seen["views"] == [["a text"]] and seen["prompts"] == ["1"]
    about = {"key": "k", "pass": plan().key("pass", **names)}
    assert seen["attributes"] == {**about, "corpus_sha256": "hash", "n_views": 0}
    assert seen["base"] is None


@pytest.mark.parametrize("other", ["", "key", "pass", "weights_sha256", "device"])
def test_arrays_are_added_to_a_file_of_the_same_pass_alone(tmp_path: Path, other: str) -> None:
    path = tiny.extracted(
        tiny.loaded("llama", tmp_path), tmp_path / "a.h5", ["a text"], arrays=("dimension",)
    )
    with h5py.File(path, "r+") as file:
        file.attrs["key"] = "k"
        same = dict.fromkeys(("pass", "weights_sha256", "device"), "x")
        file.attrs.update(same)
    key = "k" if other == "key" else "another"
    if other in same:
        same[other] = "y"
    arrays = script("extract_activations").arrays_of(path, key, same)
    assert arrays == (None if other else {"dimension"})
    assert script("extract_activations").arrays_of(tmp_path / "none.h5", key, same) is None


def test_texts_are_written_by_the_last_checkpoint(
    seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [("0", "a question"), ("1", " ")]
    monkeypatch.setattr(
        "layerwise.corpora.sources.open_texts", lambda source: (prompts, {"hub": source.hub})
    )
    seen["catch"]("layerwise.models.source.locate")
    run("generate_texts", job(plan(), {"corpus": "e"}))
    assert (seen[0].hub, seen[1]) == ("o/first", "main")


@pytest.mark.parametrize("study", ["one", "two"])
def test_a_study_is_associated_and_drawn_by_its_own_settings(
    seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch, study: str
) -> None:
    asked: list[Any] = []
    frames = {
        "metrics": tidy_metrics({"curvature": np.ones(2)}),
        "scores": tidy_scores(np.ones((1, 2))),
    }

    def of_study(_: Any, planned: Any, table: str) -> pd.DataFrame:
        asked.append((planned.name, table))
        return frames.get(table, pd.DataFrame())

    monkeypatch.setattr("layerwise.run.results.Results.of_study", of_study)
    seen["catch"]("layerwise.association.table.associate")
    run("associate_metrics", job(plan(), {"study": study}))
    assert seen[0] is frames["metrics"] and seen[1] is frames["scores"]
    settings, order, over = seen[2], seen[3], seen[4]
    (of_task,) = (name for name in plan().config.corpora if name[0] == "d")
    assert settings.own_texts == {"c": "own", of_task: "STS12"}
    assert settings.directions == {"curvature": -1}
    assert list(order.models) == ["007", "m"]
    assert over == ("tasks" if study == "one" else "layers")
    monkeypatch.setattr("layerwise.association.selection.select_layers", lambda *_, **__: "all")
    seen["catch"]("layerwise.association.selection.summarize")
    output = SimpleNamespace(summary="s.csv", selections="s.parquet")
    run("select_layers", job(plan(), {"study": study}, output=output))
    assert seen[0] == "all" and list(seen[1].models) == ["007", "m"]
    seen["catch"]("layerwise.figures.render.draw")
    run("draw_figure", job(plan(), {"study": study}))
    assert seen[0].models == (("007",) if study == "one" else ("m",))
    assert {name for name, _ in asked} == {study} and seen["config"] == plan().config


# Settings of the model m, of the extraction and of the scores. Those of a row give equal vectors,
# rows different ones.
OF_VECTORS: list[list[tuple[str, dict[str, Any]]]] = [
    [("m", {}), ("m", {"include_prompt": True}), ("scoring", {"poolings": ["mean"]})],
    [("m", {"max_length": 5})],
    [("m", {"ablate": [{"layer": 1, "part": "mlp", "token": "all"}]})],
    [("m", {"drop_dimensions": [3]})],
    [("m", {"dtype": "bfloat16"}), ("extract", {"dtype": "bfloat16"})],
    [("m", {"tokens": ["drop_first"]}), ("extract", {"tokens": ["drop_first"]})],
    [("extract", {"tokens": ["drop_sinks"], "sink_ratio": 1.01})],
    [("m", {"poolings": ["max"]}), ("scoring", {"poolings": ["max"]})],
    [("m", {"readouts": ["residual"]}), ("scoring", {"readouts": ["residual"]})],
    [
        ("m", {"prompts": {"default": "the quick fox "}}),
        ("m", {"prompts": {"own": "the quick fox "}}),
    ],
    [("m", {"prompts": {"own": "the quick fox "}, "include_prompt": False})],
    [("scoring", {"part": {"last": 2}})],
]


def test_each_setting_of_a_model_and_of_its_scores_changes_the_vectors(tmp_path: Path) -> None:
    texts = tiny.texts(4, seed=3, shortest=8)
    pd.DataFrame({"text": texts, "label": list("abab")}).to_csv(tmp_path / "own.csv")
    source = {"folder": str(tiny.save("llama", tmp_path / "m", seed=3))}
    own = {"file": str(tmp_path / "own.csv"), "kind": "classification"}

    def vectors(where: str, settings: dict[str, Any]) -> np.ndarray:
        """As the job reads them."""
        given: dict[str, Any] = {"extract": {"device": "cpu"}, "scoring": {}, "m": {}}
        given[where] = given[where] | settings
        model = {"source": source} | given.pop("m")
        about = {"models": {"m": model}, "tasks": {"own": own}, "studies": {"s": STUDY}}
        plan = Plan(Config.of(about | given))
        extraction, scoring = plan.config.extraction("m"), plan.config.scoring_of("m")
        with jobs.open_model(plan, "m", "main", extraction) as loaded:
            setup, task = set_up(loaded, extraction, scoring), jobs.task_of(plan, "own")
            found = np.empty((1, 4, len(texts), task.width(setup)), dtype=np.float32)
            prompts = [task.prompt(setup.prompts, "own", "")] * len(texts)
            assert sum(task.read(setup, texts, prompts, found)) == len(texts)
        return found

    rows = [[vectors(*change) for change in row] for row in OF_VECTORS]
    for row, changes in zip(rows, OF_VECTORS, strict=True):
        for other in row[1:]:
            np.testing.assert_array_equal(other, row[0], err_msg=str(changes))
    for (one, a), (other, b) in combinations(zip(OF_VECTORS, rows, strict=True), 2):
        assert not np.allclose(a[0], b[0], atol=1e-5), (one, other)
