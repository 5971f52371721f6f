"""Each option of each command, and each key of a config, reaches what it is for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pandas as pd
import pytest
import torch
import typer
from typer.testing import CliRunner

# A module that is imported under a patch would keep it.
from layerwise import api, callback, choosing, export  # noqa: F401
from layerwise.cli import app
from layerwise.config import Config
from layerwise.errors import LayerwiseError
from layerwise.export import Recipe
from layerwise.run.plan import MACHINE, STAGES, Plan
from layerwise.section import Section
from tools import commands, verify  # noqa: F401

OPENED = {"revision": "r", "device": "cuda:1", "dtype": "bfloat16"}
OF_MODEL = OPENED | {"max_length": 7}
# Every option of each command, at a value that is not its default.
COMMANDS = {
    "analyse": "m t.csv --metric rankme --tokens drop_first --text body --max-length 7 "
    "--csv a.csv --json a.json --plot a.png --revision r --device cuda:1 --dtype bfloat16 "
    "--threads 3",
    "choose": "m --labels t.csv --text body --text other --label class --kind regression "
    "--tokens all --within 2 --score auroc --sample 30 --max-length 7 --seed 9 --verbose "
    "--csv a.csv --json a.json --plot a.png --revision r --device cuda:1 --dtype bfloat16 "
    "--threads 3",
    "export": "m out --layer 2 --pooling max --tokens drop_first --readout residual --normalize "
    "--texts t.csv --why because --max-length 7 --revision r --device cuda:1 --dtype bfloat16 "
    "--threads 3",
    "run": "--config c.yaml --cores 5 --verbose --resubmit --keep-going",
    "fetch": "--config c.yaml",
    "plot": "results score_by_depth --output a.png",
    "new": "m n --folder f --preset panel --texts t.csv --task STS12 --task STS13",
    "plan": "--config c.yaml --tflops 7",
    "doctor": "",
    "verify": "m n --table v.csv --random --revision r --device cuda:1 --dtype bfloat16 "
    "--threads 3",
    "publish": "results out --licence mit",
    "export-scores": "results out",
    "compare": "results published m --revision r --output a.csv",
}
PLANNED = SimpleNamespace(config=SimpleNamespace(results="results"), measured={})
TABLE = pd.DataFrame({"layer": [0], "metric": "rankme", "value": 1.0})
# What the functions that a command calls return, and the call of each.
CALLS: dict[str, dict[str, tuple[Any, Any]]] = {
    "analyse": {
        "layerwise.models.opening.open_model": (MagicMock(), call("m", name="m", **OF_MODEL)),
        "layerwise.analysis.prompts_of": ([["a"]], call(Path("t.csv"), "body")),
        "layerwise.analysis.measure": (
            (TABLE, None),
            call(..., [[["a"]]], 3, metrics=["rankme"], tokens="drop_first"),
        ),
        "layerwise.api.plot": (MagicMock(), call(TABLE, ["rankme"])),
        "torch.set_num_threads": (None, call(3)),
    },
    "choose": {
        "layerwise.choosing.read": (
            ("rows", "n"),
            call(
                *(Path("t.csv"), ["body", "other"], "class"), kind="regression", sample=30, seed=9
            ),
        ),
        "layerwise.choosing.choose": (
            SimpleNamespace(
                **dict.fromkeys(("advice", "reason", "score", "tokens"), "x"),
                takes="text",
                table=TABLE,
                export_command=(exported := MagicMock()),
            ),
            call("m", "rows", tokens="all", within=2.0, score="auroc", threads=3, **OF_MODEL),
        ),
        "layerwise.choosing.plot": (None, call(..., Path("a.png"), "m")),
        "torch.set_num_threads": (None, call(3)),
    },
    "export": {
        "layerwise.models.opening.open_model": (MagicMock(), call("m", name="m", **OF_MODEL)),
        "layerwise.models.opening.depth_of": (3, call("m", "r")),
        "layerwise.analysis.prompts_of": (["a"], call(Path("t.csv"))),
        "layerwise.export.export": (
            MagicMock(parameters=1, whole_parameters=1, difference=0),
            call(
                ...,
                Recipe(2, "drop_first", "max", "residual", True),
                Path("out"),
                ["a"],
                origin="because",
            ),
        ),
        "torch.set_num_threads": (None, call(3)),
    },
    "run": {
        "layerwise.cli.runs.run_snakemake": (
            PLANNED,
            call(Path("c.yaml"), "--cores", "5", "--keep-going", resubmit=True),
        ),
    },
    "fetch": {
        "layerwise.section.read_yaml": ({}, call(Path("c.yaml"))),
        "layerwise.run.validate.read_valid": ("plan", call({}, [Path("c.yaml")])),
        "layerwise.run.fetch.fetch": (1, call("plan")),
    },
    "plot": {"layerwise.open": (opened := MagicMock(), call(Path("results")))},
    "new": {
        "layerwise.run.starter.write": (
            Path("c.yaml"),
            call(
                *(Path("f"), ["m", "n"]),
                preset="panel",
                texts=Path("t.csv"),
                tasks=["STS12", "STS13"],
            ),
        )
    },
    "plan": {
        "tools.commands.run_snakemake": (PLANNED, call(Path("c.yaml"), ..., ..., ..., ...)),
        "tools.forecast.Forecast": (forecast := MagicMock(), call(PLANNED)),
    },
    "doctor": {"tools.doctor.facts": ([], call())},
    "verify": {
        "tools.verify.verify": (
            {},
            call("n", weights="random", **OPENED),
        ),
        "tools.verify.record": (None, call(Path("v.csv"), [{}, {}])),
        "torch.set_num_threads": (None, call(3)),
    },
    "publish": {"tools.publish.publish": ([], call(Path("results"), Path("out"), "mit"))},
    "export-scores": {
        "layerwise.open": ("run", call(Path("results"))),
        "tools.mteb_results.export_scores": (1, call("run", Path("out"))),
    },
    "compare": {
        "papers.published.read_scores": ("scores", call("published", "m")),
        "papers.published.differences": (differences := MagicMock(), call("scores", "scores")),
        "papers.published.described": ([], call(differences)),
    },
}


@pytest.mark.parametrize("name", typer.main.get_command(app).commands)  # type: ignore[attr-defined]
def test_every_option_is_passed_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = COMMANDS[name].split()
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {o for p in command.params for o in p.opts if o.startswith("--")}
    assert options <= {*words}, "an option that is not asked for here"
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("body\na\n")
    called = {target: MagicMock(return_value=value) for target, (value, _) in CALLS[name].items()}
    for target, mock in called.items():
        monkeypatch.setattr(target, mock)
    before = torch.get_num_threads()
    done = CliRunner().invoke(app, [name, *words], catch_exceptions=False)
    assert done.exit_code == 0 and torch.get_num_threads() == before
    for target, (_, expected) in CALLS[name].items():
        args = called[target].call_args
        assert len(args.args) == len(expected.args) and args.kwargs == expected.kwargs, target
        for given, wanted in zip(args.args, expected.args, strict=True):
            assert wanted is ... or given is wanted or given == wanted, target
    written = {word for word in words if word.startswith("a.")}
    if name in ("analyse", "choose"):
        assert {p.name for p in tmp_path.iterdir()} >= written - {"a.png"}
    if name == "choose":
        usual = {k: v for k, v in OF_MODEL.items() if k != "device"}
        assert exported.call_args == call("m", **usual) and "layer" in done.output
    if name == "plot":
        opened.plot.assert_called_with("score_by_depth")
        opened.plot().savefig.assert_called_with(Path("a.png"))
    if name == "plan":
        forecast.table.assert_called_with(7.0)
    if name == "compare":
        first, _ = called["papers.published.read_scores"].call_args_list
        assert first == call("results", "m", "r")
        assert differences.to_csv.call_args.args == (Path("a.csv"),)


CONFIG: dict[str, Any] = {
    "models": {
        "m": {"source": {"hub": "o/m"}, "adapters": [{"hub": "o/a"}]},
        "v": {"source": {"hub": "o/vit"}, "preprocess": {"size": 224}},
    },
    "recipes": {"made": "quickstart"},
    "published": {"p": {"scores": "s.csv", "metrics": "m.csv"}},
    "corpora": {
        "c": {"source": {"hub": "o/news"}, "perturb": {"length": 9}, "views": {"n": 0}},
        "e": {"source": {"generate": {"model": "m", "prompts": {"hub": "o/q"}}}},
        "f": {"source": {"file": "f.csv"}},
        "i": {"images": {"hub": "o/i"}},
        "r": {"audio": {"hub": "o/r"}},
    },
    "tasks": {
        "STS12": {},
        "own": {"file": "own.csv", "kind": "classification"},
        "q": {"task": "papers.choice.ChoiceTask", "questions": {"hub": "o/mmlu"}},
    },
    "studies": {"s": {"kind": "metric_vs_score"}, "t": {"kind": "curves", "published": "p"}},
}
# Files are compared by content, and settings of metrics are sections of their own.
BY_CONTENT = {"file", "scores", "metrics", "settings"}


def leaves(section: Section, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The place of each key, and its value."""
    for key, value in section:
        inside: Any = [((), value)]
        if isinstance(value, dict):
            inside = [((n,), v) for n, v in value.items() if isinstance(v, Section)] or inside
        elif isinstance(value, tuple):
            inside = [((n,), v) for n, v in enumerate(value) if isinstance(v, Section)] or inside
        for where, each in inside:
            if isinstance(each, Section):
                yield from leaves(each, (*path, key, *where))
            else:
                yield (*path, key), value


def put(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    """A section, a mapping or a list with another value at a place."""
    if not path:
        return leaf
    head, *rest = path
    if isinstance(value, Section):
        return value.model_copy(update={head: put(getattr(value, head), tuple(rest), leaf)})
    inner = put(value[head], tuple(rest), leaf)
    return {**value, head: inner} if isinstance(value, dict) else (inner, *value[1:])


def another(value: Any) -> Any:
    """Another value of the type."""
    if isinstance(value, tuple):
        return (*value[:-1], another(value[-1])) if value else ("x",)
    if isinstance(value, dict):
        return {**value, "x": "y"}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 1.5 if math.isinf(value) else value + 1
    return "x" if value is None else value + "x"


def keys(config: Config) -> dict[Any, str]:
    """The keys of all files of a config."""
    plan = Plan(config)
    names: dict[str, Any] = {
        "model": config.models,
        "corpus": config.corpora,
        "study": config.studies,
        "task": config.tasks,
        "published": config.published,
        "folder": config.recipes,
        "revision": ["main"],
    }
    return {
        (stage, *values): plan.key(stage, **dict(zip(row.names, values, strict=True)))
        for stage, row in STAGES.items()
        for values in itertools.product(*(names[kind] for kind in row.names))
        if stage not in ("images", "audio") and (stage != "generate" or values == ("e",))
    }


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_every_key_of_a_config_decides_a_key() -> None:
    config = Config.of(CONFIG)
    before, silent = keys(config), set()
    for path, value in leaves(config):
        try:
            after = keys(put(config, path, another(value)))
        except (KeyError, AttributeError, LayerwiseError):  # a name that is not there
            continue
        if after == before:
            silent.add(path[-1])
    assert silent - BY_CONTENT == (MACHINE | {"results"})
