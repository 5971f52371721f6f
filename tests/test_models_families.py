"""Every family that the papers study, as tiny random models: layers, sublayers, batches, pads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import transformers as hf

from layerwise.activations import forward
from layerwise.activations.extract import extract
from layerwise.activations.layout import Activations
from layerwise.activations.readout import Packed
from layerwise.config.extraction import ExtractSettings
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import SUBLAYERS, dissect
from layerwise.models.load import LoadedModel, load

INNER = SUBLAYERS[:-1]
POST_NORM = {"bert", "roberta", "distilbert"}
MAMBA = {"mamba", "mamba2"}
TEXTS = tiny.texts(6, seed=3, longest=14)

# States of each prompt: (layer, sublayer) -> one array of shape (T, D) a prompt
States = dict[tuple[int, str], list[np.ndarray]]


@pytest.fixture(scope="module", params=list(tiny.FAMILIES))
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    folder = tiny.save(request.param, tmp_path_factory.mktemp(request.param))
    return load(request.param, tiny.entry(folder), "main", device="cpu")


class Keep:
    """Keeps every state of a batch."""

    def __init__(self, into: States, rows: list[int]) -> None:
        self.into, self.rows = into, rows

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        for place, row in enumerate(self.rows):
            kept = packed.states[place, : packed.lengths[place]].double().numpy().copy()
            self.into.setdefault((layer, sublayer), [np.empty(0)] * len(TEXTS))[row] = kept

    def finish(self) -> None:
        pass


def states_of(
    loaded: LoadedModel, *, budget: int, pads: str = "right", sublayers: tuple[str, ...] = ()
) -> States:
    ids, _ = loaded.tokenize(TEXTS)
    found: States = {}
    forward.run(
        loaded, ids, lambda rows: Keep(found, rows), budget=budget, pads=pads, sublayers=sublayers
    )
    return found


def hidden_states(loaded: LoadedModel, text: str) -> list[np.ndarray]:
    """transformers' own states of one prompt alone; its last is normed in decoders.

    The Mamba models leave the embedding output out of ``hidden_states``: their first entry is
    the state after block 1, and the last block's stands there twice, un-normed and normed.
    """
    ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        out = loaded.model(input_ids=ids, output_hidden_states=True)
    states = [h[0].double().numpy() for h in out.hidden_states]
    if loaded.anatomy.kind in MAMBA:
        embedded = loaded.model.embeddings(ids)[0].double().numpy()
        states = [embedded, *states[:-2], states[-1]]
    return states


def assert_near(found: np.ndarray, expected: np.ndarray, what: object) -> None:
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale, err_msg=str(what))


def test_layers_are_transformers_own_hidden_states(loaded: LoadedModel) -> None:
    ours = states_of(loaded, budget=64)
    assert loaded.anatomy.n_layers == 4
    for prompt in (0, 3):
        theirs = hidden_states(loaded, TEXTS[prompt])
        assert len(theirs) == 4
        for layer in range(3):
            assert_near(ours[layer, "block"][prompt], theirs[layer], layer)
        last = torch.tensor(ours[3, "block"][prompt], dtype=torch.float32)
        norm = loaded.anatomy.final_norm
        with torch.inference_mode():
            normed = last if norm is None else norm(last)
        assert_near(normed.double().numpy(), theirs[3], "last, normed")


def test_the_last_layer_is_not_normed(loaded: LoadedModel) -> None:
    if loaded.anatomy.final_norm is None:
        assert loaded.anatomy.kind in POST_NORM
        return
    last = states_of(loaded, budget=64)[3, "block"][0]
    assert np.abs(last - hidden_states(loaded, TEXTS[0])[3]).max() > 0.1


@pytest.mark.parametrize(("budget", "pads"), [(10_000, "right"), (10_000, "left"), (40, "left")])
def test_no_value_depends_on_batch_or_pads(loaded: LoadedModel, budget: int, pads: str) -> None:
    sublayers = loaded.anatomy.sublayers
    alone = states_of(loaded, budget=1, sublayers=sublayers)
    batched = states_of(loaded, budget=budget, pads=pads, sublayers=sublayers)
    assert set(alone) == set(batched)
    assert len({len(s) for s in alone[0, "block"]}) > 3, "prompts of different lengths"
    for where, states in alone.items():
        for prompt, expected in enumerate(states):
            assert batched[where][prompt].shape == expected.shape
            assert_near(batched[where][prompt], expected, (where, prompt))


def test_sublayers_add_up(loaded: LoadedModel) -> None:
    kind = loaded.anatomy.kind
    there = loaded.anatomy.sublayers
    found = states_of(loaded, budget=64, sublayers=there)
    assert ("mlp" in there) == (kind not in MAMBA)
    assert ("input_norm" in there) == (kind not in POST_NORM)
    for layer in (1, 2, 3):
        for prompt in range(len(TEXTS)):
            at = {name: found[layer, name][prompt] for name in there}
            before = found[layer - 1, "block"][prompt]
            if kind in POST_NORM:
                continue
            assert_near(at["mixer_residual"], before + at["mixer"], "mixer_residual")
            added = at.get("mlp", 0)
            assert_near(at["block"], at["mixer_residual"] + added, "block")
            assert np.abs(at["mixer"]).max() > 1e-3


def normed(module: torch.nn.Module, states: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return module(torch.tensor(states, dtype=torch.float32)).double().numpy()


# family -> its first norm and its MLP
BY_HAND: dict[str, Callable[[torch.nn.Module], tuple[torch.nn.Module, torch.nn.Module]]] = {
    "gpt_neox": lambda b: (b.input_layernorm, b.mlp),
    "gpt_neox_sequential": lambda b: (b.input_layernorm, b.mlp),
    "llama": lambda b: (b.input_layernorm, b.mlp),
    "gpt2": lambda b: (b.ln_1, b.mlp),
    "gptj": lambda b: (b.ln_1, b.mlp),
}


@pytest.mark.parametrize("loaded", BY_HAND, indirect=True)
def test_the_mlp_sees_what_the_family_says(loaded: LoadedModel) -> None:
    """Parallel blocks feed the MLP from the block's input, sequential ones from the residual."""
    block = loaded.anatomy.blocks[1]
    first, mlp = BY_HAND[loaded.name](block)
    found = states_of(loaded, budget=64, sublayers=INNER)
    before, residual = found[1, "block"][0], found[2, "mixer_residual"][0]
    assert_near(found[2, "input_norm"][0], normed(first, before), "input norm")
    if loaded.name == "gptj":
        fed = normed(first, before)
    elif loaded.name == "gpt_neox":
        fed = normed(block.post_attention_layernorm, before)
    elif loaded.name == "gpt2":
        fed = normed(block.ln_2, residual)
    else:
        fed = normed(block.post_attention_layernorm, residual)
    assert_near(found[2, "mlp"][0], normed(mlp, fed), "mlp")


@pytest.mark.parametrize("loaded", ["bert", "roberta"], indirect=True)
def test_post_norm_residuals_are_normed_sums(loaded: LoadedModel) -> None:
    found = states_of(loaded, budget=64, sublayers=loaded.anatomy.sublayers)
    block = loaded.anatomy.blocks[1]
    before, at = found[1, "block"][0], {n: found[2, n][0] for n in loaded.anatomy.sublayers}
    norm = block.attention.output.LayerNorm
    assert_near(at["mixer_residual"], normed(norm, before + at["mixer"]), "mixer_residual")
    summed = at["mixer_residual"] + at["mlp"]
    assert_near(at["block"], normed(block.output.LayerNorm, summed), "block")


@pytest.mark.parametrize("loaded", ["gpt_neox", "bert", "mamba"], indirect=True)
def test_sublayers_in_the_file(loaded: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    extract(
        loaded, corpus="c", prompts=[f"p{i}" for i in range(len(TEXTS))], views=[TEXTS, TEXTS],
        settings=ExtractSettings(sublayers=INNER, batch_tokens=64), target=path, attributes={},
    )  # fmt: skip
    found = states_of(loaded, budget=64, sublayers=loaded.anatomy.sublayers)
    for name in loaded.anatomy.sublayers:
        with Activations(path, sublayer=name) as file:
            assert set(file.sublayers) == set(loaded.anatomy.sublayers)
            assert file.layers == (range(4) if name == "block" else range(1, 4))
            for layer in (1, 3):
                for prompt in (0, 4):
                    z = found[layer, name][prompt]
                    mean = file.pooled("paper", "drop_first", layer)[prompt]
                    assert_near(mean, z[1:].mean(axis=0), (name, layer))
                    spectrum = file.spectrum("paper", "all", layer)[prompt]
                    assert spectrum.sum() == pytest.approx((z**2).sum(), rel=1e-5)
                    steps = np.diff(z, axis=0)
                    unit = steps / np.linalg.norm(steps, axis=1, keepdims=True)
                    angle = np.arccos(np.clip((unit[1:] * unit[:-1]).sum(1), -1, 1)).mean()
                    ours = file.curvature("paper", "all", layer)[prompt]
                    assert ours == pytest.approx(angle, rel=1e-4)
                    assert file.n_tokens("all", layer)[prompt] == len(z)
                np.testing.assert_allclose(
                    file.views("reference", "all", layer)[1],
                    file.views("reference", "all", layer)[0],
                )
            if name != "block":
                with pytest.raises(ValueError, match="0 is not in range"):
                    file.pooled("paper", "all", 0)
    absent = [n for n in SUBLAYERS if n not in loaded.anatomy.sublayers]
    for name in absent:
        with pytest.raises(LayerwiseError, match=f"has no sublayer '{name}'.*it holds block"):
            Activations(path, sublayer=name)


def test_xarray_reads_a_sublayer(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    folder = tiny.save("llama", tmp_path / "m")
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    path = tmp_path / "a.h5"
    extract(
        loaded, corpus="c", prompts=list("abcdef"), views=[TEXTS],
        settings=ExtractSettings(sublayers=("mlp",)), target=path, attributes={},
    )  # fmt: skip
    with xarray.open_dataset(path, engine="h5netcdf", group="sublayers/mlp") as data:
        assert data["layer"].values.tolist() == [1, 2, 3]
        assert data["pooled"].dims == ("protocol", "tokens", "layer", "view", "prompt", "hidden")
        value = data["curvature"].sel(layer=2)[0, 0, 3]
        with Activations(path, sublayer="mlp") as file:
            assert float(value) == file.curvature("paper", "all", 2)[3]


def replaced(config: hf.PreTrainedConfig, folder: Path) -> LoadedModel:
    """A random model of a config, with the tokenizer of another."""
    loaded = load("m", tiny.entry(tiny.save("llama", folder / "m")), "main", device="cpu")
    torch.manual_seed(0)
    model = hf.AutoModel.from_config(config).eval()
    return dataclasses.replace(loaded, model=model, anatomy=dissect(model))


def test_a_block_of_another_wiring_is_refused_not_misread(tmp_path: Path) -> None:
    """Granite scales what its parts add: names as Llama's, another sum."""
    config = hf.GraniteConfig(
        **tiny.COMMON, **tiny.HEADS, **tiny.TOKENS, **tiny.GROUPED, residual_multiplier=0.5
    )
    loaded = replaced(config, tmp_path)
    with pytest.raises(LayerwiseError, match=r"'granite'.*do not add up.*layer 1.*PARTS"):
        states_of(loaded, budget=64, sublayers=("mixer",))
    assert states_of(loaded, budget=64), "its layers are fine"


def test_attention_that_adds_the_residual_itself_is_refused(tmp_path: Path) -> None:
    """BLOOM's modules have Falcon's names, but its attention gives the stream back."""
    config = hf.BloomConfig(vocab_size=300, hidden_size=32, n_layer=3, n_head=4)
    with pytest.raises(LayerwiseError, match=r"'bloom'.*do not add up.*layer 1"):
        states_of(replaced(config, tmp_path), budget=64, sublayers=("mixer",))


def test_unknown_parts_say_which_line_to_add() -> None:
    model = hf.AutoModel.from_config(
        hf.XLNetConfig(vocab_size=300, d_model=32, n_layer=3, n_head=4, d_inner=48)
    )
    anatomy = dissect(model)
    assert anatomy.n_layers == 4
    with pytest.raises(LayerwiseError, match=r"'xlnet'.*rel_attn.*add a line Parts.*PARTS"):
        _ = anatomy.sublayers


def test_shared_blocks_are_refused_in_a_sentence() -> None:
    config = hf.AlbertConfig(**tiny.COMMON, **tiny.HEADS, embedding_size=16)
    with pytest.raises(LayerwiseError, match=r"AlbertModel runs one and the same block"):
        dissect(hf.AutoModel.from_config(config))


def test_vision_models_have_blocks_and_sublayers() -> None:
    size = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    for config in (
        hf.ViTConfig(**size, intermediate_size=48, image_size=16, patch_size=4),
        hf.Dinov2Config(**size, image_size=16, patch_size=4),
    ):
        anatomy = dissect(hf.AutoModel.from_config(config))
        assert anatomy.n_layers == 4
        assert anatomy.final_norm is not None
        assert anatomy.sublayers == SUBLAYERS
