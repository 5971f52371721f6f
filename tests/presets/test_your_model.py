"""What docs/your-model.md shows is accepted, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import hub
import pytest
import yaml
from conftest import ROOT

from layerwise.config import Config

PAGE = (ROOT / "docs" / "your-model.md").read_text()
BLOCKS = re.findall(r"```(yaml|python)\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("block", [text for kind, text in BLOCKS if kind == "yaml"])
def test_config_is_accepted(block: str) -> None:
    given = yaml.safe_load(block)
    study = {"kind": "metrics_by_depth", "models": list(given["models"])[:1]}
    corpora = {"mine": {"source": {"package": "lee"}}}
    config = Config.of({**given, "corpora": corpora, "studies": {"one": study}})
    assert list(config.models) == list(given["models"])


def test_every_setting_of_a_model_is_on_the_page() -> None:
    shown = {key for kind, text in BLOCKS if kind == "yaml"
             for entry in yaml.safe_load(text)["models"].values() for key in entry}  # fmt: skip
    assert set(Config.model_fields["models"].annotation.__args__[1].model_fields) == shown


@pytest.mark.slow
def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    pytest.importorskip("gensim", reason="package with the texts of the stand-ins")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    hub.add_model(tmp_path, "EleutherAI/pythia-14m", ["main"])
    (block,) = [text for kind, text in BLOCKS if kind == "python"]
    found: dict[str, object] = {}
    exec(block, found)
    ((embeddings,),) = found["slabs"]  # type: ignore[misc]
    assert embeddings.shape == (hub.LAYERS["14m"] + 1, 2, 32)
