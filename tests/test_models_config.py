"""What the config says of models and of how they are run."""

from __future__ import annotations

from typing import Any

import pytest

from layerwise.activations import reduce, representation
from layerwise.config.base import parse
from layerwise.config.extraction import ExtractSettings
from layerwise.config.models import Model, Nano
from layerwise.errors import LayerwiseError
from layerwise.models import load
from layerwise.models.architectures import BLOCK, READOUTS, SUBLAYERS

SOURCE = {"source": {"hub": "EleutherAI/pythia-14m"}}


def model(**settings: Any) -> Model:
    return parse(Model, {**SOURCE, **settings}, "models.own")


def test_shorthands_become_lists() -> None:
    assert len(model(revisions="log").revisions) == 20
    assert len(model(revisions="all").revisions) == 154
    assert model(revisions=["a", "step7"]).revisions == ("a", "step7")
    assert model().revisions == ("main",)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"revisions": "every"}, r"models.own.revisions.*\"every\".*'all', 'log'"),
        ({"revisions": "log", "source": {"hub": "a/b"}}, "pythia-… alone; list the revisions of"),
        ({"revisions": "log", "source": {"folder": "a"}}, "list the revisions by name"),
        ({"revisions": ["a", "a"]}, r"models.own.revisions.*each may stand there once"),
        ({"revisions": []}, r"models.own.revisions.*at least 1"),
        ({"revisions": ["../a"]}, r"models.own.revisions.*cannot be a name"),
        ({"adapters": [{"hob": "a/b"}]}, r"models.own.adapters\[0\].*did you mean 'hub'"),
        ({"device_map": "cuda"}, r"models.own.device_map.*\"cuda\""),
        ({"source": {"hub": "a", "folder": "b"}}, r"models.own.source: unknown key 'folder'"),
        ({"source": {"package": "a b"}}, r"models.own.source.package"),
        ({"source": "gpt2"}, r"models.own.source: \"gpt2\" came"),
        ({"max_length": 2.0}, r"models.own.max_length: 2.0 came; accepted is integer"),
        ({"dtype": "float64"}, r"models.own.dtype.*did you mean 'float16'"),
        ({"batch_tokens": 10**10}, r"models.own.batch_tokens.*or less"),
    ],
)
def test_mistakes_are_said_in_a_line(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(LayerwiseError, match=match):
        model(**settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"device": "cuda:9999"}, "extract.device"),
        ({"device": "cpu\n"}, "extract.device"),
        ({"sublayers": ["mixr"]}, r"extract.sublayers\[0\].*did you mean 'mixer'"),
        ({"threads": 10**9}, "extract.threads.*1024 or less"),
        ({"tokens": []}, "extract.tokens.*at least 1"),
        ({"readout": "final"}, 'extract.readout.*"final_norm"'),
    ],
)
def test_mistakes_in_extraction_are_said(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(LayerwiseError, match=match):
        parse(ExtractSettings, settings, "extract")


def test_a_models_own_settings_come_before_the_sections() -> None:
    section = parse(ExtractSettings, {"batch_tokens": 512, "tokens": ["all"]})
    assert model().over(section) == section
    own = model(dtype="bfloat16", tokens=["drop_first"], poolings=["max"])
    assert own.over(section).plain() == {
        **section.plain(), "dtype": "bfloat16", "tokens": ["drop_first"],
    }  # fmt: skip


def test_a_nano_model_is_bounded() -> None:
    assert parse(Nano, {"architecture": "gpt_neox"}).plain()["vocabulary"] == 2048
    with pytest.raises(LayerwiseError, match=r"nano\.x\.vocabulary.*200000 or less"):
        parse(Nano, {"architecture": "mamba2", "vocabulary": 10**9}, "nano.x")
    with pytest.raises(LayerwiseError, match=r"nano\.x\.hidden.*multiples of 32"):
        parse(Nano, {"architecture": "mamba2", "hidden": 40}, "nano.x")


def test_the_config_offers_what_the_library_does() -> None:
    """Names that are written down twice, since the config must not import torch."""

    def listed(schema: dict[str, Any]) -> tuple[str, ...]:
        return tuple(schema.get("enum") or schema["items"]["enum"])

    extract = ExtractSettings.model_json_schema()["properties"]
    own = {k: v.get("anyOf", [v])[0] for k, v in Model.model_json_schema()["properties"].items()}
    assert (*listed(extract["sublayers"]), BLOCK) == SUBLAYERS
    assert listed(extract["protocols"]) == reduce.PROTOCOLS
    assert listed(extract["dtype"]) == listed(own["dtype"]) == tuple(load.DTYPES)
    assert listed(extract["tokens"]) == listed(own["tokens"]) == representation.TOKENS
    assert listed(extract["readout"]) == listed(own["readouts"]) == READOUTS
    assert listed(own["poolings"]) == representation.POOLINGS
