"""Several residual streams, blocks in loops, and what stands between blocks and output."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.kept_states import States, states_of
from helpers.refused import refused

import layerwise as lw
from layerwise.activations.embedding import embed, representations_of
from layerwise.config.models import Ablation
from layerwise.export import Recipe, export
from layerwise.models.load import LoadedModel, load

TEXTS = tiny.texts(5, seed=3, longest=14)
# Streams of what a block receives, shape (B, T, streams, D), as transformers' code has them.
STREAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **dict.fromkeys(("deepseek_v4", "glm5_next", "hy_v4"), lambda states: states),
    "qwen4_exp": lambda states: torch.stack(states.chunk(4, dim=-1), dim=2),
    "gemma3n": lambda states: torch.stack(list(states), dim=2),
}


def opened(family: str, folder: Path, **settings: Any) -> LoadedModel:
    if not folder.exists():
        tiny.save(family, folder)
    return load(family, tiny.entry(folder, **settings), "main", device="cpu")


def ids_of(loaded: LoadedModel, text: str) -> torch.Tensor:
    return torch.tensor([loaded.texts.prompts([text])[0][0]])


def received(network: Any, blocks: list[Any], ids: torch.Tensor) -> tuple[list[Any], Any]:
    """What each call of the blocks receives, what the last gives, and the model's output."""
    seen: list[Any] = []

    def before(_: Any, args: Any, kwargs: Any) -> None:
        seen.append((args[0] if args else kwargs["hidden_states"]).clone())

    hooks = [block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks]
    last: list[Any] = []
    hooks.append(blocks[-1].register_forward_hook(lambda _, __, out: last.append(out)))
    with torch.inference_mode():
        output = network(input_ids=ids, use_cache=False).last_hidden_state
    for hook in hooks:
        hook.remove()
    end = last[-1] if isinstance(last[-1], torch.Tensor) else last[-1][0]
    return [*seen, end], output


def all_states(loaded: LoadedModel, **options: Any) -> States:
    return states_of(loaded, loaded.texts.prompts(TEXTS)[0], budget=64, **options)


@pytest.mark.parametrize("family", tiny.families(STREAMS))
def test_a_layer_is_the_mean_of_the_streams_or_one_of_them(family: str, tmp_path: Path) -> None:
    by_stream = {s: opened(family, tmp_path / "m", stream=s) for s in ("mean", 0, 3)}
    loaded = by_stream["mean"]
    assert loaded.anatomy.layout.streams == 4
    states = {stream: all_states(model) for stream, model in by_stream.items()}
    ids = ids_of(loaded, TEXTS[2])
    layers, output = received(loaded.model, list(loaded.model.layers), ids)
    for layer, tensor in enumerate(layers):
        streams = STREAMS[family](tensor)[0]
        for stream in by_stream:
            expected = streams.mean(1) if stream == "mean" else streams[:, stream]
            ours = states[stream][layer, "block"][2]
            scale = expected.abs().max().item()
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * scale)
    # The last state, read out as the model does, is its output.
    read_out = loaded.anatomy.read_out(STREAMS[family](layers[-1]))
    torch.testing.assert_close(read_out, output, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", tiny.families(STREAMS))
def test_middle_layers_are_read_out_from_all_streams(family: str, tmp_path: Path) -> None:
    """As the output of the model cut there, whatever the stream of its layers."""
    loaded = opened(family, tmp_path / "m", stream=1)
    ways = representations_of(loaded, ["all"], ["mean"], ["final_norm", "residual"])
    normed, residual = embed(loaded, TEXTS, ways)
    assert not np.allclose(normed[2], residual[2], atol=1e-3)
    layers, _ = received(loaded.model, list(loaded.model.layers), ids_of(loaded, TEXTS[2]))
    expected = loaded.anatomy.read_out(STREAMS[family](layers[2]))[0].mean(0)
    np.testing.assert_allclose(normed[2, 2], expected, atol=1e-5)
    if family == "deepseek_v4":
        done = export(loaded, Recipe(2), tmp_path / "cut", TEXTS)
        assert done.difference <= 1e-5 and done.parameters < done.whole_parameters


def test_the_stream_is_in_the_file_and_on_every_row(tmp_path: Path) -> None:
    loaded = opened("deepseek_v4", tmp_path / "m", stream=2)
    tiny.extracted(loaded, tmp_path / "a.h5", TEXTS)
    from layerwise.activations.store import Activations
    from layerwise.config.settings import MetricsSettings
    from layerwise.metrics.table import compute

    with Activations(tmp_path / "a.h5") as file:
        assert file.attributes["stream"] == "2" and file.attributes["streams"] == "4"
        for table in compute(file, MetricsSettings(metrics=("rankme", "prompt_entropy"))):
            assert set(table["stream"]) == {"2"}
    plain = tiny.loaded("llama", tmp_path / "llama")
    tiny.extracted(plain, tmp_path / "b.h5", TEXTS)
    with Activations(tmp_path / "b.h5") as file:
        assert "stream" not in file.attributes
        assert "stream" not in compute(file, MetricsSettings(metrics=("rankme",)))[0]


def test_streams_that_are_not_there(tmp_path: Path) -> None:
    with refused("out_of_range"):
        opened("deepseek_v4", tmp_path / "m", stream=4)
    with refused("out_of_range"):
        opened("llama", tmp_path / "l", stream=1)
    with refused("unsupported"):
        _ = opened("deepseek_v4", tmp_path / "m").anatomy.sublayers


def test_streams_that_do_not_begin_as_copies_are_refused(tmp_path: Path) -> None:
    """Of a wide state it is not known then that its parts are streams."""
    from layerwise.models.probe import probe

    loaded = opened("qwen4_exp", tmp_path / "m")
    ramp = torch.linspace(0, 1, 128)
    loaded.model.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: ((args[0] + ramp, *args[1:]), kwargs), with_kwargs=True
    )
    with refused("unsupported"):
        probe("qwen4_exp", loaded.model, loaded.texts.example())


def in_loops(folder: Path, **settings: Any) -> LoadedModel:
    """A model that runs its blocks several times."""
    config = hf.HrmTextConfig(
        **{**tiny.DECODER, "num_hidden_layers": 2}, head_dim=8, H_cycles=2, L_cycles=2
    )
    return load("hrm", tiny.entry(tiny.save(config, folder), **settings), "main", device="cpu")


def test_each_pass_of_a_block_is_a_layer(tmp_path: Path) -> None:
    loaded = in_loops(tmp_path / "m")
    low, high = loaded.model.L_module.layers, loaded.model.H_module.layers
    layers, output = received(loaded.model, [*low, *high], ids_of(loaded, TEXTS[2]))
    ours = all_states(loaded)
    assert loaded.anatomy.n_layers == len(layers) == 13
    for layer, expected in enumerate(layers):
        np.testing.assert_allclose(ours[layer, "block"][2], expected[0], atol=1e-5)
    torch.testing.assert_close(loaded.anatomy.read_out(layers[-1]), output, rtol=0, atol=1e-5)
    tiny.extracted(loaded, tmp_path / "a.h5", TEXTS)
    from layerwise.activations.store import Activations

    with Activations(tmp_path / "a.h5") as file:
        about = file.attributes
    assert json.loads(about["passes"]) == [1, 1, 2, 2, 1, 1, 3, 3, 4, 4, 2, 2]
    assert json.loads(about["blocks"])[:6] == [
        *(f"L_module.layers.{n}" for n in (0, 1, 0, 1)),
        *(f"H_module.layers.{n}" for n in (0, 1)),
    ]


def test_an_ablated_pass_of_a_block_leaves_its_other_passes(tmp_path: Path) -> None:
    loaded = in_loops(tmp_path / "m", ablate=(Ablation(layer=1, part="mlp", token="all"),))
    states = all_states(loaded, sublayers=("mlp",))
    assert not states[1, "mlp"][0].any()
    assert states[3, "mlp"][0].any(), "the same block's next pass"


def test_a_projection_behind_the_norm_is_part_of_the_readout(tmp_path: Path) -> None:
    loaded = opened("embedding_gemma2", tmp_path / "m")
    assert (loaded.anatomy.hidden, loaded.anatomy.output, loaded.width) == (32, 48, 48)
    layers, output = received(loaded.model, list(loaded.model.layers), ids_of(loaded, TEXTS[2]))
    vectors = lw.embed(str(tmp_path / "m"), TEXTS).values
    np.testing.assert_allclose(vectors[-1, 2], output[0].mean(0), atol=1e-5)
    with torch.inference_mode():
        projected = loaded.model.embedding_projection(loaded.model.norm(layers[1]))[0].mean(0)
    np.testing.assert_allclose(vectors[1, 2], projected, atol=1e-5)
    residual = lw.embed(str(tmp_path / "m"), TEXTS, readout="residual").values
    np.testing.assert_allclose(residual[1, 2, :32], layers[1][0].mean(0), atol=1e-5)
    assert not residual[..., 32:].any()
    # Its config has settings by the number of a layer, which a cut does not keep.
    with refused("unsupported"):
        export(loaded, Recipe(1), tmp_path / "cut", TEXTS)
    tiny.extracted(loaded, tmp_path / "a.h5", TEXTS)
    with refused("unknown_name"):
        tiny.extracted(loaded, tmp_path / "b.h5", TEXTS, readout="final_norm")
