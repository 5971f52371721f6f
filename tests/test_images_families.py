"""Families of vision models, as tiny random ones: layers, output, tokens, sublayers, batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_images
import torch
from kept_states import Keep, States
from refused import refused

from layerwise.activations import forward
from layerwise.activations.extract import extract
from layerwise.activations.store import Activations
from layerwise.config.extraction import ExtractSettings
from layerwise.config.models import Preprocess
from layerwise.models.architectures import OUTPUT
from layerwise.models.load import LoadedModel, load

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
    return load(family, tiny_images.entry(folder), "main", device="cpu")


def states_of(loaded: LoadedModel, *, budget: int, sublayers: tuple[str, ...] = ()) -> States:
    ((prompts, _),) = loaded.prompts_ahead([PICTURES])
    found: States = {}
    forward.run(
        loaded,
        prompts,
        lambda rows: Keep(found, rows, len(PICTURES)),
        budget=budget,
        output=True,
        sublayers=sublayers,
    )
    return found


def near(found: np.ndarray, expected: np.ndarray, what: object) -> None:
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale, err_msg=str(what))


def test_tokens_in_front_of_the_patches(loaded: LoadedModel, family: str) -> None:
    prefix = tiny_images.FAMILIES[family][1]
    assert loaded.anatomy.prefix == prefix
    assert loaded.anatomy.n_layers == 4
    # ImageGPT's start token takes the place of the last pixel.
    assert loaded.max_length == (PATCHES if family == "imagegpt" else PATCHES + prefix)
    assert loaded.anatomy.has_class == (family not in WITHOUT_CLASS)


def test_last_norms(loaded: LoadedModel, family: str) -> None:
    # BEiT has mean pooling, its configuration's default, and an Identity for a norm.
    norm = loaded.anatomy.final_norm
    assert (norm is None) == (family in {"beit", "clip", "clip_vision_model"})


def test_preprocessing_is_pillows(loaded: LoadedModel, family: str) -> None:
    assert type(loaded.images.processor).__name__.endswith("Pil"), family  # type: ignore[union-attr]


def test_layers_are_transformers_own_hidden_states(loaded: LoadedModel, family: str) -> None:
    ours = states_of(loaded, budget=64)
    image = PICTURES[2].pixels()
    given = dict(loaded.images.processor(images=[image], return_tensors="pt"))  # type: ignore[union-attr]
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
        near(ours[layer, "block"][2], theirs[layer], layer)
    near(ours[3, OUTPUT][2], out.last_hidden_state[0].double().numpy(), "output")
    last = ours[3, "block"][2]
    with torch.inference_mode():
        normed = last if norm is None else norm(torch.from_numpy(last).float()).double().numpy()
    matches = [np.allclose(theirs[3], one, rtol=1e-4, atol=1e-4) for one in (last, normed)]
    assert any(matches)


def test_no_value_depends_on_the_batch(loaded: LoadedModel, family: str) -> None:
    sublayers = () if family in SCALED_PARTS else loaded.anatomy.sublayers
    alone = states_of(loaded, budget=1, sublayers=sublayers)
    batched = states_of(loaded, budget=10_000, sublayers=sublayers)
    assert set(alone) == set(batched)
    for where, states in alone.items():
        for number, expected in enumerate(states):
            assert np.isfinite(expected).all()
            near(batched[where][number], expected, (where, number))
    different = np.abs(alone[3, "block"][0] - alone[3, "block"][1]).max()
    assert different > 1e-3, "other images have other states"


def test_sublayers_add_up(loaded: LoadedModel, family: str) -> None:
    if family in SCALED_PARTS:
        pytest.skip("its parts are scaled before they are added")
    found = states_of(loaded, budget=64, sublayers=("mixer", "mlp"))
    for layer in (1, 2, 3):
        before = found[layer - 1, "block"][0]
        added = found[layer, "mixer"][0] + found[layer, "mlp"][0]
        near(found[layer, "block"][0], before + added, layer)


def extracted(
    loaded: LoadedModel, target: Path, tokens: tuple[str, ...], **settings: object
) -> Activations:
    extract(
        loaded,
        corpus="noise",
        prompts=[p.name for p in PICTURES],
        views=[PICTURES],
        settings=ExtractSettings(tokens=tokens, **settings),
        target=target,  # type: ignore[arg-type]
        attributes={"n_views": 0},
    )
    return Activations(target)


def test_choices_of_tokens(loaded: LoadedModel, family: str, tmp_path: Path) -> None:
    states = states_of(loaded, budget=10_000)
    prefix = tiny_images.FAMILIES[family][1]
    tokens = ("all", "patches", *(("class",) if loaded.anatomy.has_class else ()))
    with extracted(loaded, tmp_path / "a.h5", tokens) as file:
        for layer in range(4):
            found = {name: file.pooled("paper", name, layer) for name in tokens}
            for number in range(len(PICTURES)):
                own = states[layer, "block"][number]
                means = {"all": own.mean(0), "patches": own[prefix:].mean(0), "class": own[0]}
                for name in tokens:
                    near(found[name][number], means[name], (layer, name))
        n_tokens = {name: file.n_tokens("paper", name, 1) for name in tokens}
    assert set(n_tokens["patches"]) == {loaded.max_length - prefix}
    assert "class" not in tokens or set(n_tokens["class"]) == {1}


def test_only_imagegpt_is_causal(loaded: LoadedModel, family: str) -> None:
    assert loaded.is_causal() == (family == "imagegpt")


def test_a_class_token_that_is_not_there(tmp_path: Path) -> None:
    folder = tiny_images.save("siglip_vision_model", tmp_path / "m")
    loaded = load("siglip", tiny_images.entry(folder), "main", device="cpu")
    with refused("unsupported"):
        extracted(loaded, tmp_path / "a.h5", ("class",))


def test_texts_and_images_are_not_mixed_up(tmp_path: Path) -> None:
    folder = tiny_images.save("vit", tmp_path / "m")
    loaded = load("vit", tiny_images.entry(folder), "main", device="cpu")
    with refused("conflict"):
        list(loaded.prompts_ahead([["a text"]]))
    with refused("conflict"):
        loaded.tokenize(["a text"])
    texts = load("bert", tiny.entry(tiny.save("bert", tmp_path / "t")), "main", device="cpu")
    with refused("conflict"):
        list(texts.prompts_ahead([PICTURES]))
    with refused("unsupported"):
        texts.check_tokens(["patches"])


def test_masking_is_a_setting(tmp_path: Path) -> None:
    folder = tiny_images.save("vit_mae", tmp_path / "m")
    whole = load("mae", tiny_images.entry(folder), "main", device="cpu")
    masked = load("mae", tiny_images.entry(folder, mask_ratio=0.75), "main", device="cpu")
    assert whole.max_length == 17
    assert masked.max_length == 1 + 4
    every, some = states_of(whole, budget=10_000), states_of(masked, budget=10_000)
    alone = states_of(masked, budget=1)
    chosen = set()
    for number in range(len(PICTURES)):
        near(alone[3, "block"][number], some[3, "block"][number], number)
        # What it sees are patches of the image, in their order.
        of_all, kept = every[0, "block"][number][1:], some[0, "block"][number][1:]
        places = [int(np.abs(of_all - one).sum(1).argmin()) for one in kept]
        near(of_all[places], kept, number)
        assert places == sorted(places)
        chosen.add(tuple(places))
    assert len(chosen) > 1, "drawn for each image"
    with refused("unsupported"):
        other = tiny_images.save("vit", tmp_path / "v")
        load("vit", tiny_images.entry(other, mask_ratio=0.5), "main", device="cpu")


def test_preprocessing_is_said_or_asked_for(tmp_path: Path) -> None:
    folder = tiny_images.save("dinov2", tmp_path / "m")
    (folder / "preprocessor_config.json").unlink()
    with refused("unreadable"):
        load("dinov2", tiny_images.entry(folder), "main", device="cpu")
    own = Preprocess(size=32, resize=40, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    loaded = load("dinov2", tiny_images.entry(folder, preprocess=own), "main", device="cpu")
    pixels = loaded.images.read(PICTURES[0])  # type: ignore[union-attr]
    image = PICTURES[0].pixels()
    scale = 40 / min(image.size)
    resized = image.resize((round(image.width * scale), round(image.height * scale)), 3)
    left, top = (resized.width - 32) // 2, (resized.height - 32) // 2
    cut = np.asarray(resized.crop((left, top, left + 32, top + 32))) / 255
    assert np.abs(pixels.permute(1, 2, 0).numpy() - (cut - 0.5) / 0.25).mean() < 0.2
    described = json.loads(loaded.images.described())  # type: ignore[union-attr]
    assert described["image_mean"] == [0.5] * 3
    texts = tiny.save("bert", tmp_path / "t")
    with refused("conflict"):
        load("bert", tiny_images.entry(texts, preprocess=own), "main", device="cpu")


@pytest.mark.slow
def test_dinov2_small(tmp_path: Path, shared: Path) -> None:
    folder = shared / "models" / "dinov2-small"
    if not folder.is_dir():
        pytest.skip("its weights are not here")
    loaded = load("dino", tiny_images.dino(folder), "main", device="cpu")
    assert loaded.anatomy.prefix == 1
    assert loaded.anatomy.n_layers == 13
    assert loaded.max_length == 257
    with extracted(loaded, tmp_path / "a.h5", ("class",)) as file:
        last = file.pooled("paper", "class", 12)
    given = loaded.images.processor(  # type: ignore[union-attr]
        images=[p.pixels() for p in PICTURES], return_tensors="pt"
    )
    with torch.inference_mode():
        theirs = loaded.model(**given).last_hidden_state[:, 0]
        norm = loaded.anatomy.final_norm
        assert norm is not None
        near(norm(torch.from_numpy(last)).numpy(), theirs.numpy(), "class token")


def test_patches_without_sinks_are_patches(tmp_path: Path) -> None:
    folder = tiny_images.save("dinov2_with_registers", tmp_path / "m")
    loaded = load("dino", tiny_images.entry(folder), "main", device="cpu")
    tokens = ("patches", "class", "all", "drop_sinks")
    with extracted(loaded, tmp_path / "a.h5", tokens, sink_ratio=1e6) as file:
        for layer in range(4):
            alone = file.spectrum("paper", "drop_sinks", layer)
            np.testing.assert_allclose(alone, file.spectrum("paper", "all", layer))
            assert np.abs(alone - file.spectrum("paper", "patches", layer)).max() > 1e-3
