"""Models of sentence-transformers: the output is what `SentenceTransformer.encode` gives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.refused import refused
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

import layerwise as lw
from layerwise.analysis import embed_labels, labels_of
from layerwise.export import Recipe, export
from layerwise.models.opening import open_model

TEXTS = [text.upper() for text in tiny.texts(6, longest=40)]
LABELLED = tiny.texts(40, seed=5)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("base") / "bert")


def embedder(base: Path, pooling: str, *further: Any, **settings: Any) -> SentenceTransformer:
    first = modules.Transformer(str(base), max_seq_length=16)
    chain = [first, modules.Pooling(32, pooling_mode=pooling), *further]
    return SentenceTransformer(modules=chain, device="cpu", **settings)


def check(model: Any, expected: Any) -> None:
    values = lw.embed(model, TEXTS).values[-1]
    np.testing.assert_allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken", "weightedmean"])
def test_output_is_that_of_encode(base: Path, tmp_path: Path, pooling: str) -> None:
    model = embedder(base, pooling, modules.Dense(32, 32), modules.LayerNorm(32))
    model.save(str(tmp_path / "saved"))
    expected = model.encode(TEXTS)
    check(model, expected)
    check(str(tmp_path / "saved"), expected)
    with open_model(str(tmp_path / "saved")) as loaded:
        assert loaded.max_length == 16
        export(loaded, Recipe(3), tmp_path / "exported", TEXTS)
    exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(exported, expected, atol=1e-5)


def test_default_prompt_and_lower_case(base: Path, tmp_path: Path) -> None:
    prompts = {"prompts": {"q": "the quick brown fox "}, "default_prompt_name": "q"}
    model = embedder(base, "mean", **prompts)
    model.save(str(tmp_path / "saved"))
    settings = tmp_path / "saved" / "sentence_bert_config.json"
    text = settings.read_text()
    settings.write_text(text.replace('"do_lower_case": false', '"do_lower_case": true'))
    if settings.read_text() == text:
        settings.write_text(text.rstrip().rstrip("}") + ', "do_lower_case": true}')
    lower = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert not np.allclose(lower.encode(TEXTS), model.encode(TEXTS))
    check(model, model.encode(TEXTS))
    check(str(tmp_path / "saved"), lower.encode(TEXTS))


def test_a_prompt_that_does_not_count(base: Path, tmp_path: Path) -> None:
    chain = [modules.Transformer(str(base)), modules.Pooling(32, include_prompt=False)]
    prompts = {"prompts": {"q": "the quick brown fox "}, "default_prompt_name": "q"}
    model = SentenceTransformer(modules=chain, device="cpu", **prompts)
    model.save(str(tmp_path / "saved"))
    expected = model.encode(TEXTS)
    check(model, expected)
    check(str(tmp_path / "saved"), expected)
    with open_model(str(tmp_path / "saved")) as loaded:
        export(loaded, Recipe(3), tmp_path / "exported", TEXTS)
        labels = lw.choose(model, tiny.texts(60), [n % 2 for n in range(60)])
    assert len(labels.table) == 4
    exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(exported, expected, atol=1e-5)


def test_hub_and_package_are_read_as_the_folder(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = embedder(base, "cls", modules.Dense(32, 32))
    repository = tmp_path / "hub" / "models--someone--embedder"
    model.save(str(repository / "snapshots" / ("a" * 40)))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    package = tmp_path / "packages" / "package_of_an_embedder"
    model.save(str(package / "model"))
    (package / "__init__.py").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    expected = model.encode(TEXTS)
    check("someone/embedder", expected)
    check("package:package_of_an_embedder/model", expected)


def test_the_old_layout_with_a_folder_for_the_transformer(base: Path, tmp_path: Path) -> None:
    model = embedder(base, "cls")
    model.save(str(tmp_path / "saved"))
    inner = tmp_path / "saved" / "0_Transformer"
    inner.mkdir()
    for file in list((tmp_path / "saved").iterdir()):
        if file.is_file() and file.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            file.rename(inner / file.name)
    listed = tmp_path / "saved" / "modules.json"
    listed.write_text(listed.read_text().replace('"path": ""', '"path": "0_Transformer"', 1))
    check(str(tmp_path / "saved"), model.encode(TEXTS))


@pytest.mark.parametrize("width", [8, 48])
@pytest.mark.parametrize("pooling", ["mean", "mean_sqrt_len_tokens", ("cls", "max")])
def test_modules_that_layers_cannot_have_apply_to_the_output(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, pooling: Any, width: int
) -> None:
    pooled = modules.Pooling(32, pooling_mode=pooling)
    dense = modules.Dense(pooled.get_embedding_dimension(), width)
    model = embedder(base, pooling, dense, modules.Normalize())
    model.save(str(tmp_path / "saved"))
    expected = model.encode(TEXTS)
    for source in (model, str(tmp_path / "saved")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            values = lw.embed(source, TEXTS).values
        assert values.shape[-1] == max(32, width)
        output = values[-1] / np.linalg.norm(values[-1], axis=1, keepdims=True)
        np.testing.assert_allclose(output[:, :width], expected, atol=1e-5)
        assert not output[:, width:].any() and not values[:-1, :, 32:].any()
        assert caplog.text.count("apply to its output only") == 1 and "Dense" in caplog.text
    with open_model(str(tmp_path / "saved")) as loaded:
        export(loaded, Recipe(3), tmp_path / "exported", TEXTS)
        export(loaded, Recipe(2), tmp_path / "middle", TEXTS)
    exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(exported, expected, atol=1e-5)


def test_a_peft_model_in_memory_is_read(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = tiny.save("llama", tmp_path / "llama", kind=hf.AutoModelForCausalLM)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    plain = hf.AutoModelForCausalLM.from_pretrained(folder)
    expected = lw.embed(plain, TEXTS, tokenizer).values
    wrapped = peft.get_peft_model(plain, peft.LoraConfig(r=4, task_type="CAUSAL_LM"))
    np.testing.assert_allclose(lw.embed(wrapped, TEXTS, tokenizer).values, expected, atol=1e-5)


def cut(seed: int = 0) -> modules.Dense:
    torch.manual_seed(seed)
    return modules.Dense(32, 24, activation_function=torch.nn.Tanh())


def weighted() -> modules.WeightedLayerPooling:
    weights = torch.nn.Parameter(torch.tensor([0.5, 2.0, 1.0]))
    return modules.WeightedLayerPooling(
        32, num_hidden_layers=3, layer_start=1, layer_weights=weights
    )


def mean() -> modules.Pooling:
    return modules.Pooling(32, pooling_mode="mean")


# Every further shape of modules.json with a transformer first that needs states alone.
SHAPES: dict[str, tuple[Callable[[], list[Any]], dict[str, Any]]] = {
    "plain": (lambda: [mean()], {}),
    "normalized": (lambda: [mean(), modules.Dropout(0.1), modules.Normalize()], {}),
    "normalized in the middle": (lambda: [mean(), modules.Normalize(), cut()], {}),
    "twice": (lambda: [mean(), cut(), modules.LayerNorm(24), modules.Normalize()], {}),
    "residual": (lambda: [mean(), modules.Dense(32, 32, use_residual=True)], {}),
    "layers": (lambda: [weighted(), mean(), modules.Normalize()], {}),
    "tokens": (
        lambda: [modules.Dense(32, 32, module_input_name="token_embeddings"), mean()],
        {},
    ),
    "matryoshka": (lambda: [mean(), modules.Normalize()], {"truncate_dim": 8}),
    "matryoshka behind a Dense": (lambda: [mean(), cut()], {"truncate_dim": 16}),
    "prompt": (
        lambda: [mean(), modules.Normalize()],
        {"prompts": {"q": "the quick brown fox "}, "default_prompt_name": "q"},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_embed_choose_and_export_agree_with_encode(base: Path, tmp_path: Path, shape: str) -> None:
    chain, settings = SHAPES[shape]
    options: Any = {"config_kwargs": {"output_hidden_states": True}} if shape == "layers" else {}
    first = modules.Transformer(str(base), max_seq_length=16, **options)
    model = SentenceTransformer(modules=[first, *chain()], device="cpu", **settings)
    model.save(str(tmp_path / "saved"))
    expected = model.encode(TEXTS)
    # What is cut is no part of the saved files.
    sources = [model] if "truncate_dim" in settings else [model, str(tmp_path / "saved")]
    for number, source in enumerate(sources):
        with open_model(source) as loaded:
            normalizes = loaded.embedder.normalizes
            labels = labels_of(LABELLED, [n % 2 for n in range(len(LABELLED))])
            scored = embed_labels(loaded, labels, "all")[-1]
            export(loaded, Recipe(3), tmp_path / f"exported {number}", TEXTS)
        vectors = lw.embed(source, TEXTS).values[-1]
        if normalizes:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        width = expected.shape[1]
        for ours, theirs in ((vectors, expected), (scored, model.encode(LABELLED))):
            np.testing.assert_allclose(ours[:, :width], theirs, atol=1e-5)
            assert not ours[:, width:].any()
        exported = SentenceTransformer(str(tmp_path / f"exported {number}"), device="cpu")
        np.testing.assert_allclose(exported.encode(TEXTS), expected, atol=1e-5)


def test_modules_that_need_more_than_states_are_named(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = embedder(base, "mean")
    model.insert(1, modules.CNN(32, 16))
    with caplog.at_level(logging.WARNING):
        values = lw.embed(model, TEXTS).values
    assert values.shape[-1] == 32
    assert caplog.text.count("left out") == 1 and "CNN" in caplog.text
    router = modules.Router({"query": [modules.Transformer(str(base)), mean()]})
    SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "router"))
    with refused("unsupported"):
        lw.embed(str(tmp_path / "router"), TEXTS)


def test_layers_of_a_token_are_not_averaged_without_each_ones_sinks(base: Path) -> None:
    first = modules.Transformer(str(base), config_kwargs={"output_hidden_states": True})
    model = SentenceTransformer(modules=[first, weighted(), mean()], device="cpu")
    with refused("unsupported"):
        lw.embed(model, TEXTS, tokens="drop_sinks")
