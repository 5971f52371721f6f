"""Families of vision models, as tiny random ones: layers, output, tokens, sublayers, batches."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny, tiny_images
from helpers.kept_states import States, assert_near, states_of
from helpers.refused import refused

from layerwise.activations.embedding import embed
from layerwise.activations.representation import Representation
from layerwise.activations.store import Activations
from layerwise.models.load import LoadedModel, load
from layerwise.models.opening import open_model
from layerwise.vocabulary import OUTPUT
from media.settings import Preprocess

PICTURES = tiny_images.pictures(5)
PATCHES = 16
WITHOUT_CLASS = {"aimv2_vision_model", "siglip_vision_model", "siglip", "imagegpt"}
# The mixer and the MLP have outputs that the block scales before it adds them.
SCALED_PARTS = {"beit", "imagegpt"}


@pytest.fixture(scope="module", params=tiny.families(tiny_images.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(family: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_images.save(family, tmp_path_factory.mktemp(family))
    return load(family, tiny.entry(folder), "main", device="cpu")


def passed(loaded: LoadedModel, **options: Any) -> States:
    ((prompts, _),) = loaded.prompts_ahead([PICTURES])
    return states_of(loaded, prompts, output=True, **options)


def test_anatomy(loaded: LoadedModel, family: str) -> None:
    prefix = tiny_images.FAMILIES[family][1]
    assert loaded.anatomy.prefix == prefix
    assert loaded.anatomy.n_layers == 4
    # ImageGPT's start token takes the place of the last pixel.
    assert loaded.max_length == (PATCHES if family == "imagegpt" else PATCHES + prefix)
    assert loaded.anatomy.has_class == (family not in WITHOUT_CLASS)
    assert loaded.is_causal == (family == "imagegpt")
    # BEiT has mean pooling, its configuration's default, and an Identity for a norm.
    norm = loaded.anatomy.final_norm
    assert (norm is None) == (family in {"beit", "clip", "clip_vision_model"})


def test_as_many_tokens_as_images_are_not_taken_for_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiny_images.IMAGE, "patch_size", tiny_images.SIZE)
    folder = tiny_images.save("deit", tmp_path / "m")  # of two tokens and one patch
    loaded = load("deit", tiny.entry(folder), "main", device="cpu")
    assert loaded.anatomy.layout.order == (0, 1, 2)


def test_layers_are_transformers_own_hidden_states(loaded: LoadedModel, family: str) -> None:
    ours = passed(loaded, budget=64)
    image = PICTURES[2].pixels()
    given = dict(loaded.reader.processor(images=[image], return_tensors="pt"))  # type: ignore[union-attr]
    if family == "imagegpt":
        ids = given["input_ids"]
        given = {"input_ids": torch.cat([torch.tensor([[tiny_images.LEVELS]]), ids[:, :-1]], 1)}
    if family == "vit_mae":
        given["noise"] = torch.arange(PATCHES)[None].float()
    with torch.inference_mode():
        out = loaded.model(**given, output_hidden_states=True)
    norm = loaded.anatomy.final_norm
    theirs = [h[0].double().numpy() for h in out.hidden_states]
    assert len(theirs) == 4
    for layer in range(3):
        assert_near(ours[layer, "block"][2], theirs[layer], layer)
    assert_near(ours[3, OUTPUT][2], out.last_hidden_state[0].double().numpy(), "output")
    last = ours[3, "block"][2]
    with torch.inference_mode():
        normed = last if norm is None else norm(torch.from_numpy(last).float()).double().numpy()
    matches = [np.allclose(theirs[3], one, rtol=1e-4, atol=1e-4) for one in (last, normed)]
    assert any(matches)


def test_no_value_depends_on_the_batch(loaded: LoadedModel, family: str) -> None:
    sublayers = () if family in SCALED_PARTS else loaded.anatomy.sublayers
    alone = passed(loaded, budget=1, sublayers=sublayers)
    batched = passed(loaded, budget=10_000, sublayers=sublayers)
    assert set(alone) == set(batched)
    for where, states in alone.items():
        for number, expected in enumerate(states):
            assert np.isfinite(expected).all()
            assert_near(batched[where][number], expected, (where, number))
    different = np.abs(alone[3, "block"][0] - alone[3, "block"][1]).max()
    assert different > 1e-3, "other images have other states"


def test_a_model_in_memory_is_left_as_it_was(loaded: LoadedModel) -> None:
    network = copy.deepcopy(loaded.model)
    if hasattr(network.config, "mask_ratio"):
        network.config.mask_ratio = 0.75
    network.train()
    before = tiny.facts(network)
    with open_model(network, loaded.reader.processor) as opened:
        passed(opened)
    assert tiny.facts(network) == before
    with pytest.raises(ZeroDivisionError), open_model(network, loaded.reader.processor) as opened:
        opened.anatomy.blocks[1].register_forward_hook(lambda *_: 1 / 0)
        passed(opened)
    assert tiny.facts(network) == before


def test_choices_of_tokens(loaded: LoadedModel, family: str, tmp_path: Path) -> None:
    states = passed(loaded, budget=10_000)
    prefix = tiny_images.FAMILIES[family][1]
    tokens = ("all", "patches", *(("class",) if loaded.anatomy.has_class else ()))
    path = tiny.extracted(loaded, tmp_path / "a.h5", PICTURES, tokens=tokens)
    with Activations(path) as file:
        for layer in range(4):
            found = {name: file.pooled("paper", name, layer) for name in tokens}
            for number in range(len(PICTURES)):
                own = states[layer, "block"][number]
                means = {"all": own.mean(0), "patches": own[prefix:].mean(0), "class": own[0]}
                for name in tokens:
                    assert_near(found[name][number], means[name], (layer, name))
        n_tokens = {name: file.n_tokens("paper", name, 1) for name in tokens}
    assert set(n_tokens["patches"]) == {loaded.max_length - prefix}
    # Behind the final norm, and without a dimension, the same tokens count.
    (image,) = PICTURES[:1]
    patches = embed(loaded, [image], [Representation("patches", readout="final_norm")])[0, 1, 0]
    norm = loaded.anatomy.final_norm or torch.nn.Identity()
    with torch.inference_mode():
        normed = norm(torch.from_numpy(states[1, "block"][0][prefix:]).float()).numpy()
    assert_near(patches, normed.mean(0), "normed")
    entry = loaded.entry.model_copy(update={"drop_dimensions": (0,)})
    path = tiny.extracted(replace(loaded, entry=entry), tmp_path / "b.h5", PICTURES, tokens=tokens)
    with Activations(path) as file:
        dropped = file.pooled("paper", "patches", 1)
        assert_near(dropped[0, 1:], states[1, "block"][0][prefix:].mean(0)[1:], "dropped")
        assert not dropped[:, 0].any()
    assert "class" not in tokens or set(n_tokens["class"]) == {1}


def test_a_class_token_that_is_not_there(tmp_path: Path) -> None:
    folder = tiny_images.save("siglip_vision_model", tmp_path / "m")
    loaded = load("siglip", tiny.entry(folder), "main", device="cpu")
    with refused("unsupported"):
        tiny.extracted(loaded, tmp_path / "a.h5", PICTURES, tokens=("class",))


@pytest.mark.parametrize("config", [hf.ConvNextConfig(), hf.SwinConfig()], ids=type)
def test_models_of_stages_are_refused(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.depths, config.num_stages = [1, 1, 1, 1], 4
    monkeypatch.setitem(tiny_images.FAMILIES, "stages", (lambda: config, 0))
    folder = tiny_images.save("stages", tmp_path / "m")
    with refused("unsupported"):
        load("m", tiny.entry(folder), "main", device="cpu")


def test_texts_and_images_are_not_mixed_up(tmp_path: Path) -> None:
    folder = tiny_images.save("vit", tmp_path / "m")
    loaded = load("vit", tiny.entry(folder), "main", device="cpu")
    with refused("conflict"):
        list(loaded.prompts_ahead([["a text"]]))
    with refused("conflict"):
        loaded.texts.prompts(["a text"])
    texts = tiny.loaded("bert", tmp_path / "t")
    with refused("conflict"):
        list(texts.prompts_ahead([PICTURES]))
    with refused("unsupported"):
        texts.check_tokens(["patches"])


def test_preprocessing_is_said_or_asked_for(tmp_path: Path) -> None:
    folder = tiny_images.save("dinov2", tmp_path / "m")
    (folder / "preprocessor_config.json").unlink()
    with refused("unreadable"):
        load("dinov2", tiny.entry(folder), "main", device="cpu")
    own = Preprocess(size=32, resize=40, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    loaded = load("dinov2", tiny.entry(folder, preprocess=own), "main", device="cpu")
    pixels = loaded.reader.read(PICTURES[0])  # type: ignore[union-attr]
    image = PICTURES[0].pixels()
    scale = 40 / min(image.size)
    resized = image.resize((round(image.width * scale), round(image.height * scale)), 3)
    left, top = (resized.width - 32) // 2, (resized.height - 32) // 2
    cut = np.asarray(resized.crop((left, top, left + 32, top + 32))) / 255
    assert np.abs(pixels.permute(1, 2, 0).numpy() - (cut - 0.5) / 0.25).mean() < 0.2
    described = json.loads(loaded.reader.facts()["image_processor"])  # type: ignore[union-attr]
    assert described["image_mean"] == [0.5] * 3
    texts = tiny.save("bert", tmp_path / "t")
    with refused("conflict"):
        load("bert", tiny.entry(texts, preprocess=own), "main", device="cpu")
    with refused("conflict"):
        load("dinov2", tiny.entry(folder, preprocess=own, max_length=5), "main", device="cpu")
