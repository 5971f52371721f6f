"""Sections that do not fit together: the code, the key, and for some the words."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from conftest import ROOT
from helpers.refused import refused

from layerwise import vocabulary
from layerwise.config import Config, read_config
from layerwise.errors import ConfigError
from layerwise.names import PATHS
from layerwise.run.plan import Plan
from layerwise.run.validate import log_unused, read_valid, validate
from layerwise.tasks import catalog

# Abbreviations of the tables
SHORT = {
    "TEXTS": "{source: {hub: x/texts}, views: {n: 0}}",
    "TWO": "{source: {hub: x/a}, revisions: [step1, step2]}",
    "TASKS": "tasks: [STS12, BIOSSES]",
    "SCORING": "scoring: {poolings: [mean, max]}",
    "PUBLISHED": "published: {theirs: {metrics: pyproject.toml}}",
    "RELEASED": "published: {theirs: {metrics: released, scores: released}}",
    "HUB": "{hub: x/questions}",
    "LONG": "m" * 151,
    "REPEATED": "{source: {hub: x/texts}, views: {n: 0}, perturb: {repetition: [0, 1]}}",
}
DEFAULT = """
models: {a-1m: {source: {hub: x/a}}}
corpora: {w: TEXTS}
metrics: {metrics: [prompt_entropy, curvature, effective_rank]}
extract: {tokens: [all, drop_first]}
"""


def config(study: str = "", sections: str = "") -> Config:
    """A small config with one study, ``s``: of prompt entropy by depth if it names no kind."""

    def read(text: str) -> Any:
        for short, long in SHORT.items():
            text = text.replace(short, long)
        return yaml.safe_load(text)

    given = read("{" + study + "}")
    if "kind" not in given:
        given = {"kind": "metrics_by_depth", "metrics": ["prompt_entropy"], **given}
    return Config.of(read(DEFAULT) | read("{" + sections + "}") | {"studies": {"s": given}})


# Study | other sections | code | how the error begins
PROBLEMS = """
 | results: ~/x | bad_name | results:
 | results: / | bad_name | results:
 | results: 'a{b}' | bad_name | results:
 | results: pyproject.toml | bad_name | results:
 | models: {m: TWO, M: TWO} | bad_name | models:
 | models: {LONG: TWO} | bad_name | models:
 | corpora: {w: TEXTS, w.prompts: TEXTS} | bad_name | corpora:
 | recipes: {made: no_such_package} | missing_extra | recipes.made:
 | recipes: {made: absent.smk} | missing_file | recipes.made:
 | recipes: {made: quickstart}, models: {a: {source: {folder: other/a}}} | missing_file | models.a:
 | corpora: {w: {source: {generate: {model: b, prompts: HUB}}}} | unknown_name | corpora.w.source.generate.model:
 | corpora: {w: {source: {generate: {model: a, prompts: HUB}}}}, models: {a: {source: {hub: x/a}, bidirectional: true}} | conflict | corpora.w.source.generate.model:
 | metrics: {metrics: [prompt_entropi]} | unknown_name | metrics.metrics:
 | metrics: {settings: {lidr: {}}} | unknown_name | metrics.settings:
 | metrics: {settings: {lidar: {delt: 1}}} | unknown_key | metrics.settings.lidar:
models: [b] |  | unknown_name | studies.s.models:
corpora: [v] |  | unknown_name | studies.s.corpora:
revisions: [step3] | models: {a: TWO} | unknown_name | studies.s.revisions:
kind: score_by_depth, tasks: [STS1] | TASKS | unknown_name | studies.s.tasks:
published: theirs |  | unknown_name | studies.s.published:
 | association: {directions: {lidr: 1}} | unknown_name | association.directions:
 | association: {directions: {lidr: 1}}, PUBLISHED | unknown_name | association.directions:
 | association: {own_texts: {v: STS12}} | unknown_name | association.own_texts:
 | association: {text_sources: {STS1: sts}} | unknown_name | association.text_sources:
 | association: {own_texts: {mteb/banking7: STS12}}, RELEASED | unknown_name | association.own_texts:
 | association: {own_texts: {mteb/banking77: STS1}}, RELEASED | unknown_name | association.own_texts:
 | association: {text_sources: {STS1: sts}}, RELEASED | unknown_name | association.text_sources:
 | tasks: {t: {corpus: w, kind: classification}} | unknown_name | tasks.t.corpus:
 | tasks: [STS22222] | unknown_name | tasks.STS22222:
 | extract: {arrays: [dimensionn]} | unknown_name | extract.arrays:
 | models: {a: {source: {hub: x/a}, prompts: {qery: 'q: '}}} | unknown_name | models.a.prompts:
 | tasks: {t: {file: absent.csv, kind: pairs}} | missing_file | tasks.t.file:
 | tasks: {STS12: {folder: absent}} | missing_file | tasks.STS12.folder:
 | models: {a: {source: {folder: absent}}} | missing_file | models.a:
 | models: {a: {source: {folder: ..}}} | missing_file | models.a:
kind: score_by_depth |  | missing | studies.s:
kind: probes_by_depth | TASKS | missing | studies.s: probes_by_depth needs tasks of your own labels, and there are none; add some.
kind: metrics_by_depth, metrics: [rankme] |  | unknown_name | studies.s:
kind: metrics_by_depth, metrics: [lidar] | metrics: {} | missing | studies.s:
alpha: 3 |  | unknown_name | studies.s:
tokens: [drop_sinks] |  | unknown_name | studies.s:
kind: score_by_depth, pooling: max | TASKS | unknown_name | studies.s:
kind: sublayers |  | missing | studies.s:
kind: metrics_over_checkpoints, metrics: [curvature] |  | too_few | studies.s:
kind: attention_sink | extract: {tokens: [all]} | too_few | studies.s:
kind: token_selection, tokens: [drop_first] | TASKS | too_few | studies.s:
kind: bimodality, metrics: [curvature, effective_rank] |  | ambiguous | studies.s:
kind: metric_vs_score, metrics: [prompt_entropy], over: tasks | TASKS | unsupported | studies.s:
corpora: [task texts] |  | missing | studies.s:
kind: layer_selection, corpora: [task texts] | TASKS | missing | studies.s:
colour: repetition |  | unknown_name | studies.s:
corpora: [r], colour: randomness | corpora: {r: REPEATED} | unknown_name | studies.s:
corpora: [r], colour: model | corpora: {r: REPEATED} | ambiguous | studies.s:
y: [scores] |  | unsupported | studies.s:
 | corpora: {w: TEXTS, v: TEXTS} | ambiguous | studies.s:
kind: score_by_depth, task_types: [Clasification] | TASKS | unknown_name | studies.s:
kind: score_by_depth, task_types: [Clustering] | tasks: {a: {folder: tests, type: STS}} | unknown_name | studies.s:
kind: layer_selection, task_types: [STS, Clustering] | TASKS | unsupported | studies.s:
kind: training_dynamics, pooling: [mean, max] | models: {a: TWO}, TASKS, SCORING | unsupported | studies.s:
kind: size_scaling, tokens: [all] | models: {a: TWO} | missing | studies.s:
kind: bimodality, metrics: [dataset_entropy] | metrics: {} | unsupported | studies.s:
kind: alpha_robustness, metrics: [curvature] |  | unsupported | studies.s:
kind: finetuning_effects, metrics: [curvature] |  | too_few | studies.s:
models: [a, b], revisions: [step1] | models: {a: TWO, b: {source: {hub: x/b}}} | too_few | studies.s:
kind: layer_selection, row: model | TASKS | unsupported | studies.s:
kind: score_by_depth, published: theirs | PUBLISHED | unknown_name | studies.s:
kind: layer_similarity, published: theirs | PUBLISHED | unknown_name | studies.s:
models: [a-1n] |  | unknown_name | studies.s.models: there is no 'a-1n' (did you mean 'a-1m'?).
metrics: [prompt_entropi] |  | unknown_name | studies.s: Unknown metric 'prompt_entropi' (did you mean 'prompt_entropy'?); choose from 'curvature', 'effective_rank', 'prompt_entropy'.
"""  # noqa: E501


@pytest.fixture(autouse=True)
def _quick_mteb(monkeypatch: pytest.MonkeyPatch) -> None:
    """mteb takes seconds to import; a task of another name counts as unknown here."""

    def get_task(name: str, folder: Any = None) -> None:
        if name not in ("CIFAR10", "CIFAR10Clustering", "FSDD"):
            raise ConfigError("tasks", f"there is no task {name!r}.", code="unknown_name")

    monkeypatch.setattr(catalog, "get_task", get_task)
    monkeypatch.setattr(catalog, "is_known", lambda name: False)


@pytest.mark.parametrize("row", PROBLEMS.strip("\n").splitlines())
def test_problems(row: str) -> None:
    study, sections, code, begins = row.split(" | ")
    with pytest.raises(ConfigError) as caught:
        validate(config(study, sections))
    assert caught.value.code == code and str(caught.value).startswith(begins)
    assert len(str(caught.value)) < 400


def test_sections_that_fit() -> None:
    validate(config())
    validate(config("revisions: all", "models: {a: TWO}"))
    validate(config("models: [Pythia-14m], published: theirs", "PUBLISHED"))


@pytest.mark.parametrize("lacking", ["pytorch_model.bin", "vocabulary.txt"])
def test_a_missing_file_of_pickled_weights_is_named(lacking: str, tmp_path: Path) -> None:
    for name in {"config.json", "pytorch_model.bin", "vocabulary.txt"} - {lacking}:
        (tmp_path / name).write_text("{}")
    pickled = f"{{folder: {tmp_path}, pickled: {{vocabulary: vocabulary.txt}}}}"
    with pytest.raises(ConfigError, match=lacking) as caught:
        validate(config("", f"models: {{a: {{source: {pickled}}}}}"))
    assert (caught.value.code, caught.value.where) == ("missing_file", "models.a")


def test_what_no_study_uses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    # A model of the study's name counts as unused too.
    sections = "models: {a: TWO, s: TWO}, corpora: {w: TEXTS, v: TEXTS}, TASKS"
    log_unused(Plan(config("models: [a], corpora: [w]", sections)))
    logged = {record.args for record in caplog.records}
    assert logged == {("models", "s"), ("corpora", "v"), ("tasks", "STS12, BIOSSES")}


def test_names_of_published_tables_are_known(tmp_path: Path) -> None:
    own = "{w: STS12, mteb/banking77: Banking77Classification}"
    validate(config("", f"association: {{own_texts: {own}}}, RELEASED"))
    (tmp_path / "scores.csv").write_text("task,main_score\nTheirs,0.5\n")
    (tmp_path / "metrics.csv").write_text("corpus,value\nc,0.5\n")
    tables = f"{{metrics: {tmp_path}/metrics.csv, scores: {tmp_path}/scores.csv}}"
    for own, known in (("{c: Theirs}", True), ("{c: Their}", False)):
        given = config("", f"association: {{own_texts: {own}}}, published: {{theirs: {tables}}}")
        with nullcontext() if known else refused("unknown_name"):
            validate(given)


def test_a_key_given_twice_is_found_in_the_files(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("models: {}\nmodels: {}\n")
    with refused("unreadable"):
        read_valid(config().plain(), [tmp_path / "c.yaml"])


def test_numbers_of_the_command_line_are_numbers(tmp_path: Path) -> None:
    document = config().plain()
    (tmp_path / "c.json").write_text(json.dumps(document))
    document["extract"] |= {"threads": "4", "tokens": ["all"], "keep_activations": "false"}
    plan = read_valid(document, [tmp_path / "c.json"])
    assert (plan.config.extract.threads, plan.config.extract.keep_activations) == (4, False)
    document["extract"]["threads"] = "1:30"
    with refused("wrong_type"):
        read_valid(document, [tmp_path / "c.json"])
    document["extract"] |= {"threads": "4", "device": "gpu"}
    with refused("out_of_range"):
        read_valid(document, [tmp_path / "c.json"])


@pytest.mark.parametrize("name", ["config", "presets/real", "presets/real_texts"])
def test_shipped_configs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are valid where tests/test_presets.py plans them."""
    monkeypatch.setattr("layerwise.run.validate.is_file", lambda path: True)
    try:
        validate(read_config(ROOT / f"{name}.yaml"))
    except ConfigError as error:
        if error.code == "missing_file" and "real" in name:
            pytest.skip(f"`make real` has not made all its files: {error}")
        raise


def test_each_word_has_a_label() -> None:
    words = ("Tokens", "Pooling", "Readout", "Protocol", "Normalization", "Sublayer")
    for name in words:
        labels = getattr(vocabulary, name.upper().rstrip("S") + "S")
        assert [w for w in labels if w != vocabulary.BLOCK] == [
            *get_args(getattr(vocabulary, name))
        ]


def test_paths_are_those_of_the_rules() -> None:
    files = [*ROOT.glob("workflow/rules/*.smk"), ROOT / "lib" / "papers" / "rules.smk"]
    rules = "".join(p.read_text() for p in files)
    assert [path for path in PATHS.values() if f'"<results>/{path}"' not in rules] == []
