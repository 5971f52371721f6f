"""Settings that scripts pass on to the library."""

from __future__ import annotations

import ast
import importlib
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest
from conftest import ROOT
from helpers.scripts import SCRIPTS, script

from layerwise.config import Config
from layerwise.io import tables
from layerwise.names import decode
from layerwise.run.keys import SEQUENCE
from layerwise.run.plan import Plan
from layerwise.run.results import Results
from layerwise.run.script import parser

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
    seen_by(monkeypatch, "layerwise.association.selection.summarize")
    written, summary = (
        seen_by(monkeypatch, f"layerwise.io.tables.{function}")
        for function in ("write", "write_csv")
    )
    script("select_layers").main(arguments)
    assert seen[2]["prompt_entropy"] == -1 and seen[2]["curvature"] is not None
    assert seen["own_texts"] == OWN_TEXTS and seen["seed"] == 4 and seen["prompts"] == "prompts"
    assert (seen[0], seen[1], list(seen["order"].models)) == ("metrics", "scores", ["m"])
    assert written[0] == summary[0] == Path("x") and written["key"] == summary[2] == "k"
    assert written["copies"] == {}


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
    written = seen_by(monkeypatch, "layerwise.io.tables.write")
    script("associate_metrics").main(arguments)
    assert (seen[0], seen[1], written["key"]) == ("metrics", "scores", "k")
    assert seen[2].own_texts == OWN_TEXTS and seen[2].seed == 4
    assert list(seen[3].models) == ["m"] and seen[4] == "tasks"


def test_the_table_of_best_layers_takes_order_and_seed(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.figures.report.first_table")
    written = seen_by(monkeypatch, "layerwise.io.tables.write_csv")
    script("find_best_layers").main(arguments)
    assert (written[0], written[2]) == (Path("x"), "k")
    assert seen[0] == "scores" and list(seen[1].models) == ["m"] and seen[2] == 4


def test_the_explorer_takes_directions(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = seen_by(monkeypatch, "layerwise.explore.gather")
    rendered = seen_by(monkeypatch, "layerwise.explore.page.render", "the page")
    arguments.output = tmp_path / "explore.html"
    script("build_explorer").main(arguments)
    assert rendered["key"] == "k" and arguments.output.read_text() == "the page"
    path = Path("results/scores/m/main.parquet")
    assert seen[0][""]["scores"] == [("scores", path)] and list(seen[1].models) == ["m"]
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
    assert seen[0] == "model" and seen["corpus"] == "c" and seen["target"] == Path("x")
    assert seen["views"] == corpus.views and seen["perturb"] is None


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
    assert seen[2].revision == written["revision"] == "step2"


def test_a_corpus_takes_its_settings_the_files_of_its_texts_and_the_commit(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.corpora.prompts.make_corpus")
    arguments.output, arguments.texts = Path("c.parquet"), [Path("c.txt")]
    script("make_corpus").main(arguments)
    assert (seen[0], seen[1], seen[2]) == (Path("c.parquet"), "c", arguments.config.corpora["c"])
    assert seen["texts"] == Path("c.txt") and seen["key"] == "k"
    arguments.corpus = "t"
    seen_by(monkeypatch, "layerwise.tasks.task.texts_of", ["a text of the task"])
    script("make_corpus").main(arguments)
    assert seen[1] == "t" and seen["texts"] == ["a text of the task"]
    hub = {"corpora": {"c": {"source": {"hub": "owner/news"}}}, "association": {}}
    arguments.plan, arguments.corpus = Plan(Config.of(CONFIG | hub)), "c"
    monkeypatch.setattr(Plan, "commit", lambda *_: "0123abcd")
    arguments.texts = []
    script("make_corpus").main(arguments)
    assert seen[2].source.revision == "0123abcd" and seen["texts"] is None


def test_views_take_settings_processes_and_key(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.corpora.prompts.make_views")
    arguments.output, arguments.prompts = Path("views"), Path("prompts")
    script("make_views").main(arguments)
    assert [seen[n] for n in range(3)] == [
        Path("views"),
        Path("prompts"),
        arguments.config.corpora["c"].views,
    ]
    assert (seen["processes"], seen["key"]) == (2, "k")


def test_a_figure_takes_its_tables_the_order_of_the_config_and_its_files(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = MagicMock()
    seen = seen_by(monkeypatch, "layerwise.figures.render.draw", drawn)
    for file in ("png", "pdf", "table", "caption"):
        setattr(arguments, file, Path(file))
    script("draw_figure").main(arguments)
    study = arguments.plan.studies["s"]
    assert seen[0] == study.study and seen["config"] is arguments.config
    assert seen[1] == {table: table for table in study.needs} and list(seen[2].models) == ["m"]
    *files, metadata = drawn.write.call_args.args
    assert files == [Path(file) for file in ("png", "pdf", "table", "caption")]
    assert metadata["key"] == "k" and "numpy" in metadata["versions"]


def test_a_part_takes_its_own_tasks_and_the_folder_that_all_parts_share(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {name: {"file": "own.csv", "kind": "classification"} for name in ("own", "other")}
    arguments.config = Config.of(CONFIG | {"tasks": tasks, "scoring": {"parts": 2}})
    arguments.plan, scored = Plan(arguments.config), []
    monkeypatch.syspath_prepend(str(SCRIPTS))
    seen = seen_by(monkeypatch, "layerwise.tasks.evaluate.evaluate")
    for part in ("0", "1"):
        arguments.part, arguments.output = part, Path(f"scores/m/main/parts/{part}.parquet")
        script("evaluate_part").main(arguments)
        assert seen["folder"] == Path("scores/m/main") and seen["output"] == arguments.output
        assert seen["key"] == "k"
        scored += seen[1]
    assert sorted(scored) == ["other", "own"]


def test_joining_takes_the_parts_and_all_tasks(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = seen_by(monkeypatch, "layerwise.tasks.results.join_tables")
    scored = seen_by(monkeypatch, "layerwise.tasks.evaluate.evaluate")
    arguments.parts = [Path("0.parquet"), Path("1.parquet")]
    script("evaluate_model").main(arguments)
    assert seen == {0: arguments.parts, 1: ["own"], "key": "k", "output": Path("x")}
    assert not scored


def test_published_tables_are_converted_each_in_its_way(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = {"p": {"scores": "a/s.csv", "metrics": "a/m.csv"}, "q": {"metrics": "a/m.csv"}}
    arguments.config = Config.of(CONFIG | {"published": published})
    module = "layerwise.association.published"
    monkeypatch.setattr(f"{module}.read_table", str)
    for table in ("scores", "metrics"):
        monkeypatch.setattr(f"{module}.published_{table}", f"{table} of ".__add__)
        setattr(arguments, table, Path(f"{table}.parquet"))
    written: dict[str, Any] = {}
    monkeypatch.setattr(
        "layerwise.io.tables.write",
        lambda path, rows, **facts: written.update({path.stem: (rows, facts)}),
    )
    arguments.published = "p"
    script("import_published").main(arguments)
    for table in ("scores", "metrics"):
        facts = {"key": "k", "source": f"{table[0]}.csv"}
        assert written[table] == (f"{table} of a/{table[0]}.csv", facts)
    arguments.published = "q"
    script("import_published").main(arguments)
    assert len(written["scores"][0]) == 0 and written["scores"][1]["source"] == ""


def test_similarities_take_the_activations_and_tokens_of_the_study(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = {"kind": "layer_similarity", "corpora": ["c"], "tokens": ["all"]}
    arguments.plan = Plan(Config.of(CONFIG | {"studies": {"s": study}}))
    monkeypatch.setattr("layerwise.activations.store.Activations", nullcontext)
    checked = seen_by(monkeypatch, "layerwise.run.script.check_activations")
    seen = seen_by(monkeypatch, "layerwise.association.similarity.table", "rows")
    written = seen_by(monkeypatch, "layerwise.io.tables.write")
    script("compare_layers").main(arguments)
    path = Path("results/activations/m/main/c.h5")
    assert seen == {0: [path], 1: ("all",)} and checked[1] == path
    assert written == {0: Path("x"), 1: "rows", "key": "k"}


def test_checkpoints_of_equal_weights_are_named_for_each_other(tmp_path: Path) -> None:
    facts = [("m", "step0", "1"), ("m", "step1", "1"), ("m", "step2", "2"), ("n", "step0", "1")]
    paths = [tmp_path / f"{number}.parquet" for number in range(4)]
    for path, (model, revision, weights) in zip(paths, facts, strict=True):
        about = {"model": model, "revision": revision, "dtype": "float32"}
        tables.write(path, pd.DataFrame({"a": [1]}), weights_sha256=weights, **about)
    found = script("compare_weights").compare([*paths, paths[0]])
    assert found["same_as"].tolist() == ["step1", "step0", "", ""]


def test_metrics_that_a_table_has_stay_in_the_order_of_the_config() -> None:
    module = script("compute_metrics")
    rows = pd.DataFrame(
        [("block", "paper", "all", layer, name) for layer in (0, 1) for name in ("b", "d", "a")],
        columns=["sublayer", "protocol", "tokens", "layer", "metric"],
    )
    stored, new = rows[rows["metric"] != "a"], rows[rows["metric"] == "a"]
    again = module.joined([stored, new], ("a", "b", "d"))
    assert again["layer"].tolist() == [0, 0, 0, 1, 1, 1]
    assert again["metric"].tolist() == ["a", "b", "d"] * 2
    assert module.joined([stored[:0], new], ("a",)).equals(new.reset_index(drop=True))
    kept = module.only({"metrics": rows, "positions": rows}, ["a"])
    assert set(kept["metrics"]["metric"]) == {"a"} and kept["positions"].empty
    assert len(module.only({"positions": rows}, [SEQUENCE])["positions"]) == len(rows)


def test_a_script_run_by_hand_needs_names_and_files_alone() -> None:
    options = parser("About", "model", stage="extract", output="file to write")
    by_hand = options.parse_args(["--model", "a+20b", "--output", "x.h5"])
    assert vars(by_hand) == {
        "model": decode("a+20b"),
        "output": Path("x.h5"),
        "config": Path("config.yaml"),
        "results": None,
        "key": "",
        "log": None,
        "threads": 1,
        "stage": "extract",
        "names": ("model",),
    }
    for lacking in (["--model", "a"], ["--output", "x.h5"]):
        with pytest.raises(SystemExit):
            options.parse_args(lacking)


@pytest.mark.parametrize("folder", ["scripts", "benchmarks"])
def test_names_that_are_imported_in_functions_exist(folder: str) -> None:
    """An import inside a function fails only when the function runs."""
    paths = [*(ROOT / folder).rglob("*.py")]
    imports = [
        node
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("layerwise")
    ]
    assert len(imports) > 10
    for node in imports:
        module = importlib.import_module(str(node.module))
        for name in node.names:
            if not hasattr(module, name.name):  # a module, or no name at all
                importlib.import_module(f"{node.module}.{name.name}")
