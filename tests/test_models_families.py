"""Families known to work, as tiny random models: layers, output, sublayers, batches."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.kept_states import States, assert_near, states_of
from helpers.refused import refused

from layerwise.config.models import Ablation
from layerwise.errors import Code
from layerwise.models.devices import Claim
from layerwise.models.load import LoadedModel, prepare
from layerwise.models.opening import open_model
from layerwise.models.probe import probe
from layerwise.vocabulary import OUTPUT, SUBLAYERS

INNER = [*SUBLAYERS][:-1]
POST_NORM = {
    "bert",
    "roberta",
    "distilbert",
    "deberta-v2",
    "electra",
    "mpnet",
    "nomic_bert",
    "xlnet",
    "big_bird",
    "convbert",
    "longformer",
    "luke",
    "nystromformer",
    "rembert",
    "roformer",
    "yoso",
    "fnet",
}
# transformers' hidden_states of these leave the embedding output out, and give the last block's
# twice, un-normed and normed.
WITHOUT_EMBEDDING = {"mamba", "mamba2", "falcon_mamba", "rwkv"}
WITHOUT_MLP = {"mamba", "mamba2", "falcon_mamba"}
# OLMo Hybrid has one in its linear blocks alone.
OLMO = {"olmo2", "olmo3", "olmo_hybrid"}
WITHOUT_INPUT_NORM = POST_NORM | OLMO | {"esm", "megatron-bert", "xlm-roberta-xl"}
# Residual streams of transformers' hidden_states, shape (streams, T, D).
STREAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **dict.fromkeys(("deepseek_v4", "glm5_next_text", "hy_v4"), lambda h: h[0].transpose(0, 1)),
    "qwen4_exp_text": lambda h: h[0].unflatten(-1, (4, 32)).transpose(0, 1),
    "gemma3n_text": lambda h: h[:, 0],
}
# Their layers can be read, the parts of their blocks cannot. No entry of sublayers.yaml fits:
UNKNOWN_PARTS = {
    "rwkv": "the first block norms its input before it adds to it",
    "xlnet": "attention is added and normed in one module, without a module for its output",
    "zamba": "a block shared by several layers adds to the input of the mixer, not to the stream",
    "zamba2": "as in zamba",
    "granitemoehybrid": "two MLPs are summed outside of modules, and scaled",
    "xlm": "a block is spread over lists of modules",
    "flaubert": "as in xlm",
    "albert": "a block is a group of layers",
    **dict.fromkeys(STREAMS, "there are several residual streams, and a part adds to each"),
}
# An entry fits, but parts are scaled or normed before they are added:
SCALED_PARTS = {
    "granite": "residual_multiplier scales what parts add",
    "falcon_h1": "attention and the state-space mixer are scaled and summed",
    "bart": "post-norm, with the names of pre-norm blocks",
    "led": "as in bart",
    "ibert": "parts are quantized",
    "mobilebert": "a bottleneck makes the stream wider and narrower within the block",
    "openai-gpt": "post-norm, with the names of pre-norm blocks",
    "embedding_gemma2_text": "an embedding of each layer is added, and the stream is scaled",
}
# Their states depend on pads.
EQUAL_LENGTHS = {"convbert", "fnet", "mobilebert", "nystromformer", "yoso"}
TEXTS = tiny.texts(6, seed=3, longest=14)

# States of each prompt: (layer, sublayer) -> one array of shape (T, D) a prompt


@pytest.fixture(scope="module", params=tiny.families(tiny.FAMILIES))
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    return tiny.loaded(request.param, tmp_path_factory.mktemp(request.param))


def passed(loaded: LoadedModel, **options: Any) -> States:
    return states_of(loaded, loaded.texts.prompts(TEXTS)[0], **options)


def parts_of(loaded: LoadedModel) -> tuple[str, ...]:
    kind = loaded.anatomy.kind
    return () if kind in {**UNKNOWN_PARTS, **SCALED_PARTS} else loaded.anatomy.sublayers


def transformers_own(loaded: LoadedModel, text: str) -> tuple[list[np.ndarray], np.ndarray]:
    """transformers' own states of one prompt alone, by layer (the last is normed in decoders),
    and what it hands out."""
    ids = loaded.texts.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        out = loaded.model(input_ids=ids, output_hidden_states=True)
    of_kind = STREAMS.get(loaded.anatomy.kind)
    hidden = out.hidden_states
    if of_kind:
        hidden = [*(of_kind(h).mean(0)[None] for h in hidden[:-1]), hidden[-1]]
    # Some have been padded.
    states = [h[0, : ids.shape[1]].double().numpy() for h in hidden]
    if loaded.anatomy.kind in WITHOUT_EMBEDDING:
        embedded = loaded.model.get_input_embeddings()(ids)[0].double().numpy()
        states = [embedded, *states[:-2], states[-1]]
    return states, out.last_hidden_state[0].double().numpy()


def test_layers_are_transformers_own_hidden_states(loaded: LoadedModel) -> None:
    ours = passed(loaded, budget=64, output=True)
    norm = loaded.anatomy.final_norm
    assert loaded.anatomy.n_layers == 4
    assert loaded.anatomy.equal_lengths == (loaded.anatomy.kind in EQUAL_LENGTHS)
    if loaded.anatomy.kind == "hrm_text":  # see test_models_streams.py
        return
    for prompt in (0, 3):
        theirs, handed_out = transformers_own(loaded, TEXTS[prompt])
        assert len(theirs) == 4
        for layer in range(3):
            assert_near(ours[layer, "block"][prompt], theirs[layer], layer)
        last = ours[3, "block"][prompt]
        if loaded.anatomy.layout.streams == 1:
            assert_near(last if norm is None else normed(norm, last), theirs[3], "last, normed")
        assert_near(ours[3, OUTPUT][prompt], handed_out, "output")


def test_no_value_depends_on_the_batch(loaded: LoadedModel) -> None:
    sublayers = parts_of(loaded)
    alone = passed(loaded, budget=1, sublayers=sublayers, output=True)
    assert len({len(s) for s in alone[0, "block"]}) > 3, "prompts of different lengths"
    for budget in (40, 10_000):
        batched = passed(loaded, budget=budget, sublayers=sublayers, output=True)
        assert set(alone) == set(batched)
        for where, states in alone.items():
            for prompt, expected in enumerate(states):
                assert np.isfinite(expected).all()
                assert batched[where][prompt].shape == expected.shape
                assert_near(batched[where][prompt], expected, (where, prompt))


def test_sublayers_add_up(loaded: LoadedModel) -> None:
    kind = loaded.anatomy.kind
    if kind in UNKNOWN_PARTS:
        with refused("unsupported"):
            _ = loaded.anatomy.sublayers
        return
    if kind in SCALED_PARTS:
        with refused("unsupported"):
            passed(loaded, budget=64, sublayers=("mixer",))
        return
    there = loaded.anatomy.sublayers
    found = passed(loaded, budget=64, sublayers=there)
    assert ("mlp" in there) == (kind not in WITHOUT_MLP)
    assert ("input_norm" in there) == (kind not in WITHOUT_INPUT_NORM)
    for layer in (1, 2, 3):
        for prompt in range(len(TEXTS)):
            at = {name: found[layer, name][prompt] for name in there}
            before = found[layer - 1, "block"][prompt]
            if kind in POST_NORM:
                continue
            assert_near(at["mixer_residual"], before + at["mixer"], "mixer_residual")
            added = at.get("mlp", 0)
            # What an HRM block receives is more than what the one before it gives.
            if kind != "hrm_text":
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


@pytest.mark.parametrize("loaded", tiny.families(BY_HAND), indirect=True)
def test_the_mlp_sees_what_the_family_says(loaded: LoadedModel) -> None:
    """Parallel blocks feed the MLP from the block's input, sequential ones from the residual."""
    block = loaded.anatomy.blocks[1]
    first, mlp = BY_HAND[loaded.name](block)
    inner = [name for name in INNER if name in loaded.anatomy.sublayers]
    found = passed(loaded, budget=64, sublayers=inner)
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


@pytest.mark.parametrize("loaded", tiny.families(["bert", "roberta"]), indirect=True)
def test_post_norm_residuals_are_normed_sums(loaded: LoadedModel) -> None:
    found = passed(loaded, budget=64, sublayers=loaded.anatomy.sublayers)
    block = loaded.anatomy.blocks[1]
    before, at = found[1, "block"][0], {n: found[2, n][0] for n in loaded.anatomy.sublayers}
    norm = block.attention.output.LayerNorm
    assert_near(at["mixer_residual"], normed(norm, before + at["mixer"]), "mixer_residual")
    summed = at["mixer_residual"] + at["mlp"]
    assert_near(at["block"], normed(block.output.LayerNorm, summed), "block")


def test_an_output_of_another_width_is_no_readout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPT-350m projects its last states to half the width."""
    narrow = hf.OPTConfig(
        **tiny.COMMON,
        **tiny.TOKENS,
        num_attention_heads=4,
        ffn_dim=48,
        word_embed_proj_dim=16,
        do_layer_norm_before=False,
    )
    monkeypatch.setitem(tiny.FAMILIES, "opt", lambda: narrow)
    loaded = tiny.loaded("opt", tmp_path / "m")
    assert loaded.anatomy.readouts == ("residual",)
    assert passed(loaded, budget=64)[3, "block"][0].shape[1] == 32
    with refused("unknown_name"):
        tiny.extracted(loaded, tmp_path / "a.h5", TEXTS, readout="output")


def test_a_model_in_memory_is_left_as_it_was(loaded: LoadedModel, tmp_path: Path) -> None:
    network, tokenizer = copy.deepcopy((loaded.model, loaded.texts.tokenizer))
    tokenizer.pad_token = None
    if loaded.name == "rwkv":  # whose first pass halves weights
        network.config.rescale_every, network.layers_are_rescaled = 1, False
        network(input_ids=torch.tensor([[1, 2]]))
        assert network.layers_are_rescaled
    network.train()
    next(network.children()).eval()
    next(network.parameters()).requires_grad_(True)
    before = tiny.facts(network)
    with open_model(network, tokenizer) as opened:
        ours = states_of(opened, opened.texts.prompts(TEXTS)[0])
        tiny.extracted(opened, tmp_path / "a.h5", TEXTS, arrays=tiny.ATTENTION)
    assert tiny.facts(network) == before
    with pytest.raises(ZeroDivisionError), open_model(network, tokenizer) as opened:
        opened.anatomy.blocks[1].register_forward_hook(lambda *_: 1 / 0)
        states_of(opened, opened.texts.prompts(TEXTS)[0])
    assert tiny.facts(network) == before and tokenizer.pad_token is None
    for where, states in passed(loaded).items():
        assert_near(ours[where][0], states[0], where)


def ablated(loaded: LoadedModel, **settings: Any) -> LoadedModel:
    entry = loaded.entry.model_copy(update={"ablate": (Ablation(**settings),)})
    return prepare("m", loaded.model, loaded.texts.tokenizer, entry, revision="main", **FACTS)


FACTS: dict[str, Any] = {"dtype": "float32", "weights": "", "claim": Claim(torch.device("cpu"))}


@pytest.mark.parametrize(
    "loaded", tiny.families(["llama", "gpt_neox", "mpt", "bert"]), indirect=True
)
@pytest.mark.parametrize("token", ["first", "all"])
@pytest.mark.parametrize("part", ["mixer", "mlp"])
def test_an_ablated_part_adds_nothing(loaded: LoadedModel, part: str, token: str) -> None:
    inner = ("mixer", "mixer_residual", "mlp")
    whole = passed(loaded, sublayers=inner)
    without = ablated(loaded, layer=2, part=part, token=token)
    found = passed(without, sublayers=inner)
    alone = passed(without, sublayers=inner, budget=1)
    for n, states in enumerate(found[2, part]):
        silent = slice(1) if token == "first" else slice(None)
        assert not states[silent].any() and (token == "all" or states[1:].any())
        assert_near(found[1, "block"][n], whole[1, "block"][n], "before")
        assert_near(found[3, "block"][n], alone[3, "block"][n], "alone")
        if part == "mlp" and loaded.anatomy.kind not in POST_NORM:
            left = found[2, "mixer_residual"][n][silent]
            assert_near(found[2, "block"][n][silent], left, "block")
        if (part, token) == ("mlp", "first"):
            assert_near(found[2, "block"][n][1:], whole[2, "block"][n][1:], "other tokens")
        assert np.abs(found[3, "block"][n] - whole[3, "block"][n]).max() > 1e-3


@pytest.mark.parametrize(
    ("loaded", "layer", "code"),
    [("llama", 4, "out_of_range"), ("mamba2", 1, "unsupported"), ("albert", 1, "unsupported")],
    indirect=["loaded"],
)
def test_ablations_that_cannot_be(loaded: LoadedModel, layer: int, code: Code) -> None:
    with refused(code):
        ablated(loaded, layer=layer, part="mlp")


@pytest.mark.parametrize("loaded", ["xlm"], indirect=True)
def test_blocks_over_several_lists_pass_their_states_on(loaded: LoadedModel) -> None:
    """Where the states change between two lists, it is not known which of them are a layer's."""
    network = copy.deepcopy(loaded.model)
    network.attentions[1].register_forward_pre_hook(lambda _, given: (given[0] + 1, *given[1:]))
    with refused("unsupported"):
        probe("xlm", network, loaded.texts.example())


@pytest.mark.parametrize("family", tiny.OTHER)
def test_models_of_other_layers_are_refused(family: str, tmp_path: Path) -> None:
    with refused("unsupported"):
        tiny.loaded(family, tmp_path / "m")
