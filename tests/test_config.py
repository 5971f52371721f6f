"""Mistakes in a config: the code, the key, and for some the words."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from helpers.refused import refused
from huggingface_hub import constants

from layerwise.config import Config, read_config
from layerwise.config.models import FolderSource, HubSource, Model
from layerwise.errors import ConfigError
from layerwise.metrics.registry import sections
from layerwise.project import SCHEMA
from layerwise.run.plan import Plan, settings
from layerwise.section import parse
from tools import schema
from tools.forecast import TOKENS, Forecast

QUICKSTART = yaml.safe_load((ROOT / "config.yaml").read_text())


def change(path: str, value: Any) -> dict[str, Any]:
    """The quickstart's config with one key changed; ``/`` separates keys."""
    config: dict[str, Any] = yaml.safe_load(yaml.safe_dump(QUICKSTART))
    inside = config
    *parents, last = path.split("/")
    for part in parents:
        inside = inside.setdefault(part, {})
    inside[last] = value
    return config


# Key to change | value | code | how the error begins, if not with the key
MISTAKES = r"""
modles | {} | unknown_key | the config: unknown key 'modles' (did you mean 'models'?).
studies | {} | out_of_range
models | [a] | wrong_type
extract | null | wrong_type
models/minilm-l6/max_lenght | 9 | unknown_key | models.minilm-l6:
models/minilm-l6/max_length | 2.0 | wrong_type
models/minilm-l6/batch_tokens | 10000000000 | out_of_range
models/minilm-l6/revisions | [] | out_of_range
models/minilm-l6/revisions | [a, a] | duplicate
models/minilm-l6/revisions | every | invalid
models/minilm-l6/revisions | log | invalid
models/minilm-l6/revisions | [../a] | bad_name | models.minilm-l6.revisions[0]:
models/minilm-l6/device_map | cuda | unknown_value
models/minilm-l6/prompts | {query: 3} | wrong_type | models.minilm-l6.prompts.query:
models/minilm-l6/adapters | [{hob: a}] | one_of | models.minilm-l6.adapters[0]:
models/minilm-l6/source | gpt2 | one_of
models/minilm-l6/source | {hub: a, folder: b} | unknown_key
models/minilm-l6/source | {hub: 3} | wrong_type | models.minilm-l6.source.hub:
models/minilm-l6/source | {package: a b} | out_of_range | models.minilm-l6.source.package:
models/x | {} | missing | models.x.source: Field required.
models | {../../x: {source: {hub: a/b}}} | bad_name | models.../../x:
recipes | {made: make it} | out_of_range | recipes.made:
recipes | {../made: quickstart} | bad_name | recipes.../made:
tasks | {a: {type: STS}} | invalid | tasks.a:
tasks | {a: {folder: b, type: Sts}} | unknown_value | tasks.a.type:
corpora/c | {} | one_of
corpora/c | {source: {fil: a.txt}} | one_of | corpora.c.source:
corpora/c | {source: {file: a.doc}} | invalid | corpora.c.source.file:
corpora/c | {source: {hub: a, template: '{x'}} | invalid | corpora.c.source.template:
corpora/c | {source: {hub: a, template: x}} | invalid | corpora.c.source.template:
corpora/c | {source: {file: a.txt}, perturb: {length: 4}} | invalid
corpora/c | {source: {file: a.txt}, perturb: {repetition: [0, 2]}} | out_of_range | corpora.c.perturb.repetition[1]:
corpora/c | {images: {folder: 1}} | wrong_type | corpora.c.images.folder:
corpora/wikipedia/filters/min_token | 3 | unknown_key | corpora.wikipedia.filters:
corpora/wikipedia/views/n | -2 | out_of_range
tasks | [a, a] | duplicate
tasks | STS12 | wrong_type
tasks | {a: {kind: tags}} | invalid | tasks.a:
tasks | {a: {file: a.csv, kind: clas}} | unknown_value | tasks.a.kind:
tasks | {a: {file: a.csv, kind: tags}} | invalid | tasks.a:
tasks | {a: {file: a.csv, kind: pairs, group: g}} | invalid | tasks.a:
tasks | {a: {file: a.csv, kind: pairs, texts: [x]}} | invalid | tasks.a:
tasks | {a: {corpus: c, kind: pairs}} | invalid | tasks.a:
tasks | {a: {task: papers.choice.ChoiceTask, questions: {file: a.txt}}} | invalid | tasks.a.questions.file:
tasks | {a: {questions: {file: a.csv}}} | unknown_key | tasks.a:
tasks | {a: {task: no.such.Task}} | invalid | tasks.a:
tasks | {a: {task: pathlib.Path}} | invalid | tasks.a:
tasks | {a: {fold: b}} | unknown_key | tasks.a:
extract/device | gpu | out_of_range
extract/device | cuda:9999 | out_of_range
extract/dtype | float23 | unknown_value | extract.dtype: unknown value 'float23' (did you mean 'float32'?).
extract/tokens | all | wrong_type | extract.tokens: must be a valid list, got 'all'; write [all].
extract/tokens | [all, dropfirst] | unknown_value | extract.tokens[1]:
extract/threads | 0 | out_of_range | extract.threads: must be greater than or equal to 1, got 0.
extract/threads | true | wrong_type
extract/sink_ratio | .inf | out_of_range
metrics/alphas | [0] | out_of_range | metrics.alphas[0]:
metrics/alphas | [infi] | wrong_type | metrics.alphas[0]:
scoring/waiting_gb | 4 | unknown_key | scoring:
corpora/c | {source: {task: a}, views: {seed: 1}} | unknown_key | corpora.c.views:
scoring/normalize | 'yes' | wrong_type
association/directions | {x: 2} | unknown_value | association.directions.x:
studies/a | {kind: score_by_dept} | unknown_value | studies.a.kind: unknown value 'score_by_dept' (did you mean 'score_by_depth'?).
studies/a | {kind: curves, shade: red} | unknown_key
studies/a | {kind: curves, models: m} | wrong_type | studies.a.models:
studies/a | {kind: curves, revisions: first} | unknown_value | studies.a.revisions:
studies/a | {kind: curves, metrics: [{metric: x, alfa: 2}]} | unknown_key | studies.a.metrics[0]:
results | "a\nb" | control_character
models/minilm-l6/revisions | [main, 2024-01-01] | wrong_type | models.minilm-l6.revisions[1]:
models/minilm-l6/revisions | [main, "a\nb"] | control_character | models.minilm-l6.revisions[1]:
models/minilm-l6/adapters | [{hub: a}, {"a\nb": b}] | control_character | models.minilm-l6.adapters[1]:
models/minilm-l6/adapters | [{hub: a}, {hub: 2024-01-01}] | wrong_type | models.minilm-l6.adapters[1].hub:
models/minilm-l6/adapters | [{hub: a}, {2: b}] | wrong_type | models.minilm-l6.adapters[1]:
results | "" | bad_name
models/x | {source: {hub: 3}} | wrong_type | models.x.source.hub: must be a valid string, got 3; put it in quotes.
corpora/wikipedia/views/p | '1e-1' | wrong_type | corpora.wikipedia.views.p: must be a valid number, got '1e-1'.
corpora/c | {source: {fil: a}} | one_of | corpora.c.source: expected a mapping with one of the keys 'hub', 'file', 'task', 'generate', got {"fil": "a"} (did you mean 'file'?).
"""


@pytest.mark.parametrize("row", MISTAKES.strip().splitlines())
def test_mistakes(row: str) -> None:
    path, value, code, *begins = row.split(" | ")
    with pytest.raises(ConfigError) as caught:
        Config.of(change(path, yaml.safe_load(value)))
    assert caught.value.code == code
    begins = begins or [path.replace("/", ".") + ":"]
    assert str(caught.value).startswith(begins[0])
    assert len(str(caught.value)) < 300


# Key to change | value | message
@pytest.mark.parametrize("document", ["{2024-01-01: a}", '{"a\\nb": 1}', "[]"])
def test_a_mistake_of_the_whole_config_says_so(document: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Config, yaml.safe_load(document))
    assert caught.value.where == "the config"


def test_the_quickstart_and_its_defaults() -> None:
    config = read_config(ROOT / "config.yaml")
    assert config.extract.dtype == "float32"
    assert config.extract.protocols == ("paper",)
    assert config.models["minilm-l6"].revisions == ("main",)
    assert config.metrics.normalizations == ()
    assert config.studies["score_by_depth"].models is None


def test_a_saved_config_is_the_same(tmp_path: Path) -> None:
    config = Config.of(change("corpora/wikipedia/views/p", 0.00001))
    (tmp_path / "config.json").write_text(json.dumps(config.plain()))
    assert read_config(tmp_path / "config.json") == config


def test_the_config_says_whose_texts_a_corpus_holds_before_its_source_does() -> None:
    corpora = {name: {"source": {"task": "STS12"}} for name in ("a", "b")}
    document = {
        "corpora": corpora,
        "tasks": ["STS12", "STS13"],
        "association": {"own_texts": {"b": "STS13"}},
        "studies": {"s": {"kind": "power_law"}},
    }
    assert Config.of(document).own_texts == {"a": "STS12", "b": "STS13"}


def test_tasks_as_a_list_and_as_a_mapping() -> None:
    listed = Config.of(change("tasks", ["STS12", "BIOSSES"]))
    assert listed == Config.of(change("tasks", {"STS12": None, "BIOSSES": {}}))
    assert list(listed.tasks) == ["STS12", "BIOSSES"]


def test_checkpoints_of_pythia() -> None:
    model = parse(Model, {"source": {"hub": "EleutherAI/pythia-14m"}, "revisions": "log"})
    assert len(model.revisions) == 20


def test_keys_leave_out_defaults_at_any_depth() -> None:
    config = Config.of(change("studies/a", {"kind": "curves", "metrics": [{"metric": "x"}]}))
    assert settings(config.studies["a"]) == {"kind": "curves", "metrics": [{"metric": "x"}]}
    assert settings(config.metrics).keys() == {"metrics"}


BOMB = [("x", "a"), *zip("abcdefghijklmnopqrstu", "bcdefghijklmnopqrstuv", strict=True)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("models: {}\ntasks: []\nmodels: {}\n", "unreadable"),
        ("models:\n  a: {source: {hub: x}}\n  a: {source: {hub: y}}\n", "unreadable"),
        ("models: [", "unreadable"),
        ("corpora: {c: {sample: {n: 0100}}}\n", "unreadable"),
        ("extract: {threads: 1:30}\n", "unreadable"),
        ("extract: {sink_ratio: 1:30.5}\n", "unreadable"),
        ("results: !!python/object/apply:os.getcwd []\n", "unreadable"),
        ("results: 2024-01-01\n", "wrong_type"),
        ("models: {1: {source: {hub: x}}}\n", "wrong_type"),
        ("results: !!binary aGk=\n", "wrong_type"),
        ("results: &a [*a]\n", "unreadable"),
        (
            "x: &x 1\n" + "".join(f"{c}: &{c} [{', '.join(9 * [f'*{p}'])}]\n" for p, c in BOMB),
            "unreadable",
        ),
        (
            "x: &x {y: 1}\n" + "".join(f"{c}: &{c} {{<<: [*{p}, *{p}]}}\n" for p, c in BOMB),
            "unreadable",
        ),
        ("".join(f"k{n}: 1\n" for n in range(20_000)), "unknown_key"),
        (f"results: [{', '.join(f'k{n}' for n in range(20_000))}]", "wrong_type"),
        ("[" * 60 + "]" * 60, "unreadable"),
        ('{"studies": {"a": {"kind": "curves", "kind": "map"}}}', "unreadable"),
        ("- a\n", "wrong_type"),
        ("", "wrong_type"),
    ],
)
def test_files_are_read_strictly(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / ("c.json" if text.startswith('{"') else "c.yaml")
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert caught.value.code == code


def test_the_schema_describes_every_key() -> None:
    found = schema.schema()
    sections = {"Config": found, **found["$defs"]}
    for name, section in sections.items():
        if "properties" not in section:
            continue
        assert section["additionalProperties"] is (name == "CustomEntry"), name
        for key, entry in section["properties"].items():
            described = sections[entry["$ref"].split("/")[-1]] if "$ref" in entry else entry
            assert entry.get("description") or described["description"], f"{name}.{key}"


def test_the_schema_in_the_repository_is_current() -> None:
    # python -m tools.schema > config.schema.json
    assert json.loads((ROOT / SCHEMA).read_text(encoding="utf-8")) == schema.schema()


def test_checkpoints_of_any_suite_are_named_by_a_pattern_of_branches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refs = tmp_path / "models--allenai--OLMo" / "refs"
    (refs / "pr").mkdir(parents=True)
    steps = [1000, 0, *range(2000, 200_000, 1000)]
    names = ["main", "pr/1", "stage2-step5-tokens1B"]
    for name in [*names, *(f"stage1-step{n}-tokens{n // 500}B" for n in steps)]:
        (refs / name).write_text("0" * 40)

    def revisions(**given: object) -> tuple[str, ...]:
        return Model(source=HubSource(hub="allenai/OLMo"), revisions=given).revisions

    every = revisions(pattern="stage1-step{step}-tokens*", which="all")
    assert every == tuple(f"stage1-step{n}-tokens{n // 500}B" for n in sorted(steps))
    some = revisions(pattern="stage1-step{step}-tokens*")
    assert set(some) < set(every)
    assert (some[0], some[-1]) == (every[0], every[-1])
    assert len(some) <= 20
    assert some[len(some) // 2] in every[:30]  # on a log scale
    for name in set(every) - set(some):
        (refs / name).unlink()
    # As on a node without internet, after `layerwise fetch`.
    assert revisions(pattern="stage1-step{step}-tokens*") == some
    with pytest.raises(ValueError, match="no branch matches"):
        revisions(pattern="ckpt_{step}")
    with pytest.raises(ValueError, match=r"needs \{step\} once"):
        revisions(pattern="step*")
    with pytest.raises(ValueError, match="for models on the hub"):
        Model(source=FolderSource(folder="m"), revisions={"pattern": "step{step}"})


@pytest.mark.parametrize(
    "corpora",
    [
        {"c": {"repetition": [0.1234567, 0.12345671]}},
        {"c": {"repetition": [0.1, 0.5]}, "c repetition 0.5": {"repetition": 0.2}},
    ],
)
def test_perturbed_corpora_do_not_replace_each_other(corpora: dict[str, Any]) -> None:
    entry = {"source": {"file": "a.txt"}, "views": {"n": 0}}
    given = {name: {**entry, "perturb": perturb} for name, perturb in corpora.items()}
    with refused("duplicate"):
        Config.of({**QUICKSTART, "corpora": given})


SECTIONS = "models|recipes|corpora|tasks|extract|metrics|scoring|association|studies|published"
KEY = re.compile(rf"(?<![\w./-])(?:{SECTIONS})(?:\.(?:[a-z_]+|\*))+")


def messages(tree: ast.Module) -> Iterator[str]:
    """The texts of a module without docstrings; a replaced part is a ``*``."""
    seen: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            seen.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            seen |= {id(part) for part in node.values}
            yield "".join(p.value if isinstance(p, ast.Constant) else "*" for p in node.values)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen
        ):
            yield node.value


def inside(node: dict[str, Any], key: str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of a key in any of a node's forms."""
    if "$ref" in node:
        return inside(definitions[node["$ref"].rpartition("/")[2]], key, definitions)
    forms = [form for many in ("anyOf", "oneOf", "allOf") for form in node.get(many, ())]
    found = [part for form in forms for part in inside(form, key, definitions)]
    if key in node.get("properties", {}):
        found.append(node["properties"][key])
    named = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    found += [part for part in named if isinstance(part, dict)]
    return found if key != "*" else found + list(node.get("properties", {}).values())


def test_errors_name_keys_that_there_are() -> None:
    root = schema.schema()
    metrics = {
        name: {"properties": section.model_json_schema()["properties"]}
        for name, section in sections().items()
    }
    root["$defs"]["MetricsSettings"]["properties"]["settings"] = {"properties": metrics}
    n_keys = 0
    for file in (ROOT / "lib/layerwise").rglob("*.py"):
        for text in messages(ast.parse(file.read_text())):
            for key in KEY.findall(text):
                nodes, n_keys = [root], n_keys + 1
                for part in key.split("."):
                    nodes = [n for node in nodes for n in inside(node, part, root["$defs"])]
                    assert nodes, f"{file.name}: an error names {key}, which is no key"
    assert n_keys > 20


def test_the_plan_counts_token_states() -> None:
    def size(**settings: Any) -> float:
        given = change("extract", {**QUICKSTART["extract"], **settings})
        return Forecast(Plan(Config.of(given))).activations_gb("minilm-l6", "wikipedia")

    n, hidden = Config.of(QUICKSTART).corpora["wikipedia"].sample.n, 384
    expected = 2 * n * TOKENS * 2 * hidden / 1e9
    assert abs(size(token_states="float16", layers=[0, 2]) - size() - expected) <= 1e-9
