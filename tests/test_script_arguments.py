"""Settings that scripts pass on to the library."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from helpers.scripts import script

from layerwise.config import Config
from layerwise.run.plan import Plan
from layerwise.run.results import Results

CONFIG: dict[str, Any] = {
    "models": {"m": {"source": {"hub": "o/m"}, "tokens": ["all"]}},
    "corpora": {
        "c": {"source": {"file": "c.txt"}, "token_states": True},
        "t": {"source": {"task": "own"}},
    },
    "tasks": {"own": {"file": "own.csv", "kind": "classification"}},
    "extract": {"sink_ratio": 7.0, "dtype": "bfloat16"},
    "scoring": {"threads": 3, "seed": 5},
    "association": {"directions": {"prompt_entropy": -1}, "seed": 4, "own_texts": {"c": "own"}},
    "studies": {"s": {"kind": "layer_selection", "over": "tasks"}},
}

OWN_TEXTS = {"c": "own", "t": "own"}


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    config = Config.of(CONFIG)
    monkeypatch.setattr(Results, "of_study", lambda _, __, table: table)
    monkeypatch.setattr(Results, "read", lambda _, __, table: table)
    names = {"study": "s", "model": "m", "revision": "main", "corpus": "c"}
    files = dict.fromkeys(("output", "summary", "prompts", "views"), Path("x"))
    return Namespace(config=config, plan=Plan(config), key="k", threads=2, **names, **files)


def seen_by(monkeypatch: pytest.MonkeyPatch, function: str, answer: Any = None) -> dict[str, Any]:
    """What a function of the library is called with, once it is called."""
    seen: dict[str, Any] = {}

    def record(*args: Any, **options: Any) -> Any:
        seen.update(enumerate(args))
        seen.update(options)
        return answer

    monkeypatch.setattr(function, record)
    return seen


def test_selection_takes_directions_own_texts_and_seed(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.association.selection.select_layers")
    for function in ("association.selection.summarize", "io.tables.write", "io.tables.write_csv"):
        seen_by(monkeypatch, f"layerwise.{function}")
    script("select_layers").main(arguments)
    assert seen[2]["prompt_entropy"] == -1 and seen[2]["curvature"] is not None
    assert seen["own_texts"] == OWN_TEXTS and seen["seed"] == 4 and seen["prompts"] == "prompts"


def test_scoring_takes_sinks_precision_threads_and_keys(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.tasks.evaluate.evaluate")
    arguments.parts, arguments.output = [], Path("scores.parquet")
    script("evaluate_model").main(arguments)
    assert (seen["extraction"].sink_ratio, seen["extraction"].dtype) == (7.0, "bfloat16")
    assert seen["threads"] == 2 and seen["scoring"].seed == 5
    assert seen["keys"] == arguments.plan.keys.scores("m", "main")
    assert list(seen[1]) == ["own"]
    # A profile gives the CPUs of a GPU (set-threads).
    arguments.threads = 12
    script("evaluate_model").main(arguments)
    assert seen["threads"] == 12


def test_association_takes_the_texts_of_tasks_the_order_and_what_it_is_over(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.association.table.associate")
    seen_by(monkeypatch, "layerwise.io.tables.write")
    script("associate_metrics").main(arguments)
    assert seen[2].own_texts == OWN_TEXTS and seen[2].seed == 4
    assert list(seen[3].models) == ["m"] and seen[4] == "tasks"


def test_the_table_of_best_layers_takes_order_and_seed(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.figures.report.first_table")
    seen_by(monkeypatch, "layerwise.io.tables.write_csv")
    script("find_best_layers").main(arguments)
    assert seen[0] == "scores" and list(seen[1].models) == ["m"] and seen[2] == 4


def test_the_explorer_takes_directions(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = seen_by(monkeypatch, "layerwise.explore.gather")
    seen_by(monkeypatch, "layerwise.explore.page.render", "")
    arguments.output = tmp_path / "explore.html"
    script("build_explorer").main(arguments)
    assert seen[3] == {"prompt_entropy": -1} and seen[2] == arguments.output


def test_an_extraction_takes_what_model_and_corpus_override(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.activations.extract.extract")
    corpus = Namespace(name="c", ids=["0"], views=[["a text"], ["a tuxt"]], hash="h")
    seen_by(monkeypatch, "layerwise.corpora.prompts.read", corpus)
    opened = seen_by(monkeypatch, "layerwise.run.script.open_model", nullcontext("model"))
    script("extract_activations").main(arguments)
    settings = seen["settings"]
    assert settings.token_states and settings.tokens == ("all",) and settings.sink_ratio == 7
    assert opened[3].dtype == "bfloat16" and seen["prompts"] == ["0"]
    assert seen["attributes"] == {"key": "k", "corpus_sha256": "h", "n_views": 1}


def test_texts_are_written_by_the_last_checkpoint(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"source": {"hub": "o/m"}, "revisions": ["step1", "step2"]}
    source = {"generate": {"model": "m", "prompts": {"file": "questions.csv"}}}
    given = {"models": {"m": model}, "corpora": {"c": {"source": source}}, "association": {}}
    arguments.config = Config.of(CONFIG | given | {"extract": {"device": "cpu"}})
    arguments.plan, arguments.output = Plan(arguments.config), Path("texts.parquet")
    network = MagicMock(device="cpu", generation_config=Namespace(eos_token_id=2))
    network.eval.return_value = network
    found = network, MagicMock(), {"missing_keys": [], "mismatched_keys": []}
    seen_by(monkeypatch, "layerwise.corpora.sources.open_texts", ([], {}))
    seen = seen_by(monkeypatch, "layerwise.models.load.read", found)
    written = seen_by(monkeypatch, "layerwise.io.tables.write")
    script("generate_texts").main(arguments)
    assert seen[2] == written["revision"] == "step2"
