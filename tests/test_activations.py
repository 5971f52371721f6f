"""One forward pass to a file: what is in it is what the model does, whatever the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tiny
import torch

from layerwise.activations import batches, readout, representation, slabs
from layerwise.activations.embed import embed, those_it_has
from layerwise.activations.extract import extract
from layerwise.activations.reduce import Needs, decompose, reduce
from layerwise.activations.representation import POOLINGS, pool
from layerwise.activations.store import Activations
from layerwise.config.extraction import ExtractSettings
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel, load
from layerwise.tasks.layout import Reading, twin

TOKENS = ("all", "drop_first", "drop_sinks")


@pytest.fixture(scope="module", params=tiny.KINDS)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    folder = tiny.save(request.param, tmp_path_factory.mktemp(request.param))
    return load(request.param, tiny.entry(folder), "main", device="cpu")


def extracted(loaded: LoadedModel, target: Path, budget: int, views: int = 1) -> Path:
    texts = [tiny.texts(12, seed=v) for v in range(views + 1)]
    extract(
        loaded, corpus="c", prompts=[f"p{i}" for i in range(12)], views=texts,
        settings=ExtractSettings(tokens=TOKENS, keep_states=3, batch_tokens=budget),
        target=target, attributes={},
    )  # fmt: skip
    return target


def test_windows_leave_no_seam(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts are taken window by window; where one ends must not show in the file."""
    texts = [tiny.texts(70, seed=v) for v in range(2)]
    files = []
    for bytes_at_once in (2**30, 1):
        monkeypatch.setitem(batches.WINDOW_BYTES, "cpu", bytes_at_once)
        files.append(tmp_path / f"{bytes_at_once}.h5")
        extract(
            loaded, corpus="c", prompts=[f"p{i}" for i in range(70)], views=texts,
            settings=ExtractSettings(keep_states=1), target=files[-1], attributes={},
        )  # fmt: skip
    with h5py.File(files[0]) as a, h5py.File(files[1]) as b:
        for name in ("pooled", "spectrum", "curvature", "n_tokens"):
            x, y = a[name][()], b[name][()]
            np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5 * np.nanmax(np.abs(x)))


def hidden_states(loaded: LoadedModel, text: str) -> list[np.ndarray]:
    """transformers' own states of one prompt alone; its last is normed in decoders.

    The Mamba models leave the embedding output out of ``hidden_states``: their first entry is
    the state after block 1, and the last block's stands there twice, un-normed and normed.
    """
    ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        out = loaded.model(input_ids=ids, output_hidden_states=True)
    states = [h[0].double().numpy() for h in out.hidden_states]
    if loaded.model.config.model_type in {"mamba", "mamba2"}:
        embedded = loaded.model.embeddings(ids)[0].double().numpy()
        states = [embedded, *states[:-2], states[-1]]
    return states


def test_layers_are_the_residual_stream(loaded: LoadedModel, tmp_path: Path) -> None:
    path = extracted(loaded, tmp_path / "a.h5", budget=64)
    texts = tiny.texts(12, seed=0)
    with Activations(path) as file:
        assert file.n_layers == 4
        for prompt in (0, 2):
            theirs = hidden_states(loaded, texts[prompt])
            for layer in range(3):
                ours = file.states(layer)[prompt]
                np.testing.assert_allclose(ours, theirs[layer], rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(
                    file.pooled("paper", "all", layer)[prompt],
                    theirs[layer].mean(axis=0), rtol=1e-4, atol=1e-5,
                )  # fmt: skip
                np.testing.assert_allclose(
                    file.pooled("paper", "drop_first", layer)[prompt],
                    theirs[layer][1:].mean(axis=0), rtol=1e-4, atol=1e-5,
                )  # fmt: skip
            last = torch.tensor(file.states(3)[prompt])
            norm = loaded.anatomy.final_norm
            normed = last if norm is None else norm(last)
            np.testing.assert_allclose(normed.numpy(), theirs[3], rtol=1e-4, atol=1e-5)


def handed_out(loaded: LoadedModel, text: str) -> np.ndarray:
    ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return loaded.model(input_ids=ids).last_hidden_state[0].numpy()


def test_output_is_what_the_model_hands_its_users(loaded: LoadedModel, tmp_path: Path) -> None:
    texts = tiny.texts(12, seed=0)
    for readout_ in ("residual", "output"):
        extract(
            loaded, corpus="c", prompts=[f"p{i}" for i in range(12)], views=[texts],
            settings=ExtractSettings(readout=readout_, keep_states=12, batch_tokens=64),
            target=tmp_path / f"{readout_}.h5", attributes={},
        )  # fmt: skip
    with (
        Activations(tmp_path / "residual.h5") as plain,
        Activations(tmp_path / "output.h5") as output,
    ):
        assert output.attributes["readout"] == "output"
        for layer in range(3):
            for protocol in ("paper", "reference"):
                a, b = (f.pooled(protocol, "all", layer) for f in (plain, output))
                np.testing.assert_array_equal(a, b)
        for prompt, text in enumerate(texts):
            wanted = handed_out(loaded, text)
            np.testing.assert_allclose(
                output.states(3)[prompt], wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max()
            )
        same = np.array_equal(
            plain.spectrum("paper", "all", 3), output.spectrum("paper", "all", 3)
        )
        assert same == (loaded.anatomy.final_norm is None)


def test_reference_reads_the_output_whatever_paper_reads(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    """Each protocol holds what it would hold alone, and `output` and `reference` are one thing."""
    texts = tiny.texts(12, seed=0)

    def file(name: str, **settings: Any) -> dict[str, np.ndarray]:
        path = tmp_path / f"{name}.h5"
        extract(
            loaded, corpus="c", prompts=[f"p{i}" for i in range(12)], views=[texts, texts[::-1]],
            settings=ExtractSettings(tokens=TOKENS, keep_states=2, **settings),
            target=path, attributes={},
        )  # fmt: skip
        with h5py.File(path) as opened:
            names = ("pooled", "spectrum", "curvature", "curvature_angles", "n_tokens", "states")
            return {n: opened[n][()] for n in names} | {"readouts": opened.attrs["readouts"]}

    both = file("both")
    assert json.loads(both["readouts"]) == {"paper": "residual", "reference": "output"}
    paper, reference = file("p", protocols=("paper",)), file("r", protocols=("reference",))
    handed = file("o", readout="output")
    for name in ("pooled", "spectrum", "curvature", "curvature_angles", "n_tokens"):
        np.testing.assert_array_equal(both[name][:1], paper[name], name)
        np.testing.assert_array_equal(both[name][1:], reference[name], name)
        np.testing.assert_array_equal(handed[name][1:], reference[name], name)
    # The states that are kept are the setting's, whatever the protocols read.
    np.testing.assert_array_equal(reference["states"], both["states"])
    assert np.isfinite(reference["states"]).all()
    if loaded.anatomy.final_norm is not None:
        normed = file("n", readout="final_norm")
        np.testing.assert_array_equal(normed["pooled"][1], reference["pooled"][0])
        assert not np.array_equal(normed["pooled"][0, :, 1], handed["pooled"][0, :, 1])
        np.testing.assert_allclose(
            normed["pooled"][0, :, 3], handed["pooled"][0, :, 3], rtol=1e-3, atol=1e-5
        )


def test_sinks_are_counted_in_what_a_protocol_reads(tmp_path: Path) -> None:
    """A token with a huge state in the stream is no sink after the model's last norm."""
    loaded = load("m", tiny.entry(tiny.save("llama", tmp_path / "m")), "main", device="cpu")
    loaded.model.get_input_embeddings().weight[5] *= 1000
    ids = loaded.tokenizer(tiny.SENTENCE)["input_ids"][:20]
    found = loaded.tokenizer.decode([*ids[:7], 5, *ids[7:]])
    ids = loaded.tokenizer(found)["input_ids"]
    assert ids.count(5) == 1
    extract(
        loaded, corpus="c", prompts=["p"], views=[[found]], target=tmp_path / "a.h5",
        settings=ExtractSettings(tokens=("all", "drop_sinks")), attributes={},
    )  # fmt: skip
    with Activations(tmp_path / "a.h5") as file:
        counts = {
            (p, layer): file.n_tokens(p, "drop_sinks", layer)[0]
            for p in file.protocols for layer in file.layers
        }  # fmt: skip
        assert file.n_tokens("reference", "all", 3)[0] == len(ids)
    assert counts["paper", 2] == counts["reference", 2] == len(ids) - 1
    assert counts["paper", 3] == len(ids) - 1
    assert counts["reference", 3] == len(ids)


def embedded(loaded: LoadedModel, readings: list[Reading], budget: int = 64) -> np.ndarray:
    slabs: list[np.ndarray] = []
    embed(
        loaded, tiny.texts(12, seed=0), lambda _, __, found: slabs.append(whole(found, readings)),
        readings=readings, budget=budget,
    )  # fmt: skip
    return np.concatenate(slabs, axis=2)


def whole(found: list[np.ndarray], readings: list[Reading]) -> np.ndarray:
    """All layers of every reading, those stored once filled in, shape (R, L + 1, N, D)."""
    plain = {r: mine for r, mine in zip(readings, found, strict=True) if len(mine) > 1}
    twins = [twin(r, readings) for r in readings]
    return np.stack([
        mine if of is None else np.concatenate([plain[of][:-1], mine])
        for mine, of in zip(found, twins, strict=True)
    ])  # fmt: skip


def test_readouts_of_embeddings_side_by_side(loaded: LoadedModel) -> None:
    names = loaded.anatomy.readouts
    assert ("final_norm" in names) == (loaded.anatomy.kind != "bert")
    found = dict(zip(names, embedded(loaded, [Reading(readout=n) for n in names]), strict=True))
    plain, output = found["residual"], found["output"]
    np.testing.assert_array_equal(output[:3], plain[:3])
    for text, mine in zip(tiny.texts(12, seed=0), output[3], strict=True):
        wanted = handed_out(loaded, text).mean(axis=0)
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)
    if "final_norm" in names:
        np.testing.assert_allclose(output[3], found["final_norm"][3], rtol=1e-5, atol=1e-6)
        assert np.abs(plain[3] - output[3]).max() > 0.01
    else:
        np.testing.assert_array_equal(output, plain)


def test_poolings_are_what_they_say(loaded: LoadedModel) -> None:
    readings = [Reading(t, p) for t in ("all", "drop_first") for p in POOLINGS]
    alone, together = (embedded(loaded, readings, budget) for budget in (1, 10_000))
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5 * np.abs(alone).max())
    for prompt, text in ((0, tiny.texts(12, seed=0)[0]), (7, tiny.texts(12, seed=0)[7])):
        states = hidden_states(loaded, text)[2]
        for place, reading in enumerate(readings):
            z = states[reading.tokens == "drop_first" :]
            weights = np.arange(1, len(z) + 1)
            wanted = {
                "mean": z.mean(axis=0),
                "weighted_mean": (weights[:, None] * z).sum(axis=0) / weights.sum(),
                "max": z.max(axis=0),
                "last_token": z[-1],
                "cls": z[0],
            }[reading.pooling]
            ours = together[place, 2, prompt]
            np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5, err_msg=str(reading))


def test_a_text_without_tokens_that_count_is_zero_under_every_pooling() -> None:
    one = representation.choose(
        representation.pack(torch.randn(1, 1, 4), torch.tensor([1])), "drop_first"
    )
    beside = representation.pack(-torch.ones(2, 3, 4), torch.tensor([3, 0]))
    for pooling in POOLINGS:
        assert pool(one, pooling).abs().sum() == 0
        if pooling != "cls":
            assert pool(beside, pooling)[0].tolist() == [-1] * 4


def test_readouts_that_a_model_lacks_are_left_out_and_said(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    both = [Reading(readout=n) for n in ("residual", "final_norm")]
    left = those_it_has(loaded, both)
    if loaded.anatomy.kind != "bert":
        assert left == tuple(both)
        assert not caplog.text
        return
    assert left == (both[0],)
    assert "bert (architecture 'bert') has no readout final_norm; its file holds residual" in (
        caplog.text
    )
    with pytest.raises(LayerwiseError, match=r"has no readout final_norm, and no other.*output"):
        those_it_has(loaded, both[1:])
    with pytest.raises(LayerwiseError, match=r"readout is 'final_norm', but bert .*residual and"):
        embedded(loaded, both)


def test_values_do_not_depend_on_the_batch(loaded: LoadedModel, tmp_path: Path) -> None:
    alone = extracted(loaded, tmp_path / "alone.h5", budget=1)
    together = extracted(loaded, tmp_path / "together.h5", budget=10_000)
    with h5py.File(alone) as a, h5py.File(together) as b:
        for name in ("pooled", "spectrum", "curvature", "states"):
            x, y = a[name][()], b[name][()]
            scale = np.abs(x[np.isfinite(x)]).max()
            np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5 * scale, err_msg=name)
        np.testing.assert_array_equal(a["n_tokens"], b["n_tokens"])
        np.testing.assert_array_equal(a["curvature_angles"], b["curvature_angles"])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 2.00 TiB for an array"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        None,
    ],
)
def test_memory_runs_out_in_several_ways(tmp_path: Path, error: Exception | None) -> None:
    folder = tiny.save("gpt_neox", tmp_path / "m")
    model = load("m", tiny.entry(folder), "main", device="cpu")
    sizes = []

    def full(_: object, arguments: tuple[torch.Tensor, ...]) -> None:
        sizes.append(len(arguments[0]))
        if len(arguments[0]) > 3 and error is None:
            torch.empty(10**15)  # more than any machine has: what the allocator itself says
        elif len(arguments[0]) > 3:
            raise error or AssertionError

    model.anatomy.blocks[1].register_forward_pre_hook(full)
    extracted(model, tmp_path / "a.h5", budget=10_000)
    assert sizes[:6] == [12, 6, 3, 3, 3, 3]
    model.anatomy.blocks[1].register_forward_pre_hook(_fail)
    with pytest.raises(RuntimeError, match="size mismatch"):
        extracted(model, tmp_path / "b.h5", budget=10_000)


def _fail(*_: object) -> None:
    raise RuntimeError("size mismatch")


@pytest.mark.parametrize("pooling", ["mean", "last_token", "cls"])
def test_texts_of_one_token_have_nothing_without_it(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, pooling: str
) -> None:
    monkeypatch.setattr(LoadedModel, "tokenize", lambda *_: ([[5], [7]], [0, 0]))
    slabs: list[np.ndarray] = []
    embed(
        loaded, ["a", "b"], lambda _, __, slab: slabs.append(slab),
        readings=[Reading("all", pooling), Reading("drop_first", pooling)],
    )  # fmt: skip
    assert np.abs(slabs[0][0]).min(axis=-1).max() > 0
    assert np.abs(slabs[0][1]).max() == 0


def test_a_token_repeated_has_no_rounding_for_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without absolute positions and a first token of their own all states are equal, but for
    # rounding, which differs from batch to batch.
    folder = tiny.save("gpt_neox", tmp_path / "m")
    model = load("m", tiny.entry(folder), "main", device="cpu")
    ids = [[5] * 90, [7] * 61, [5] * 33] + model.tokenize(tiny.texts(5, seed=1))[0]
    monkeypatch.setattr(LoadedModel, "tokenize", lambda *_: (ids, [0] * len(ids)))
    texts = [""] * len(ids)
    found = {}
    for budget in (1, 10_000):
        path = tmp_path / f"{budget}.h5"
        extract(
            model, corpus="c", prompts=[str(i) for i in range(len(texts))], views=[texts],
            settings=ExtractSettings(tokens=("drop_first",), batch_tokens=budget),
            target=path, attributes={},
        )  # fmt: skip
        with h5py.File(path) as file:
            names = ("pooled", "spectrum", "curvature", "curvature_angles")
            found[budget] = {name: file[name][()] for name in names}
    alone, together = found.values()
    assert (alone["curvature_angles"][:, :, :, :3] == 0).all()
    assert (alone["curvature_angles"][:, :, :, 3:] > 0).all()
    assert np.abs(alone["pooled"][1, :, :, :, :3]).max() == 0
    for name, values in alone.items():
        np.testing.assert_allclose(
            together[name], values, rtol=1e-4, atol=1e-5 * np.nanmax(np.abs(values)), err_msg=name
        )


def test_spectra_and_curvature_follow_from_the_states(loaded: LoadedModel, tmp_path: Path) -> None:
    path = extracted(loaded, tmp_path / "a.h5", budget=64)
    with Activations(path) as file:
        for layer in range(file.n_layers):
            states = file.states(layer)
            assert len(states) == 3
            for prompt, full in enumerate(states):
                for tokens, z in (("all", full), ("drop_first", full[1:])):
                    z = z.astype(float)
                    singular = np.linalg.svd(z, compute_uv=False) ** 2
                    spectrum = file.spectrum("paper", tokens, layer)[prompt]
                    np.testing.assert_allclose(
                        spectrum[: len(singular)], singular, rtol=1e-7, atol=1e-9 * singular[0]
                    )
                    assert np.all(spectrum[len(singular) :] <= 1e-9 * singular[0])
                    steps = np.diff(z, axis=0)
                    cosine = (steps[1:] * steps[:-1]).sum(1) / (
                        np.linalg.norm(steps[1:], axis=1) * np.linalg.norm(steps[:-1], axis=1)
                    )
                    expected = np.arccos(np.clip(cosine, -1, 1)).mean()
                    ours = file.curvature("paper", tokens, layer)[prompt]
                    # Inner products are float32.
                    np.testing.assert_allclose(ours, expected, atol=1e-5)

                    if layer == file.n_layers - 1:
                        # The authors take transformers' states, the last of them as handed out.
                        z = hidden_states(loaded, tiny.texts(12, seed=0)[prompt])[-1]
                        z = z[1:] if tokens == "drop_first" else z
                    unit = z - z.mean(axis=0)
                    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
                    clamped = np.linalg.eigvalsh(np.maximum(unit @ unit.T, 0))[::-1]
                    ours = file.spectrum("reference", tokens, layer)[prompt]
                    np.testing.assert_allclose(
                        np.sort(ours[np.abs(ours) > 1e-5]),
                        np.sort(clamped[np.abs(clamped) > 1e-5]), rtol=1e-4, atol=1e-6,
                    )  # fmt: skip
                    assert np.isclose(ours.sum(), len(z))
                    np.testing.assert_allclose(
                        file.pooled("reference", tokens, layer)[prompt], unit.mean(axis=0),
                        rtol=1e-3, atol=1e-5,
                    )  # fmt: skip
                    angles = np.arccos(np.clip((unit[1:] * unit[:-1]).sum(1), -1, 1))
                    np.testing.assert_allclose(
                        file.curvature("reference", tokens, layer)[prompt],
                        angles.mean(),
                        rtol=1e-5,
                    )


def test_views_are_those_texts(loaded: LoadedModel, tmp_path: Path) -> None:
    path = extracted(loaded, tmp_path / "a.h5", budget=64, views=2)
    with Activations(path) as file:
        stacked = file.views("paper", "all", 2)
        assert stacked.shape == (3, 12, 32)
        theirs = hidden_states(loaded, tiny.texts(12, seed=2)[5])[2].mean(axis=0)
        np.testing.assert_allclose(stacked[2, 5], theirs, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(stacked[0], file.pooled("paper", "all", 2))


def test_choices_that_leave_the_same_tokens_share_a_spectrum() -> None:
    """No sink, the first token, another one, both, and a prompt of one token."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(6, 12, 8, generator=generator)
    states[1, 0] *= 100
    states[2, 5] *= 100
    states[3, [0, 7]] *= 100
    packed = representation.pack(states, torch.tensor([12, 10, 12, 9, 1, 12]))
    together = reduce(packed, Needs(tokens=TOKENS))
    assert [m.shape[0] for m in together.matrices] == [6, 6, 2] * 2
    alone = [reduce(packed, Needs(tokens=(name,))) for name in TOKENS]
    decompose([together, *alone])
    for place, one in enumerate(alone):
        found = together.arrays["spectrum"][:, place]
        own = one.arrays["spectrum"][:, 0]
        torch.testing.assert_close(found[..., : own.shape[-1]], own, rtol=1e-9, atol=1e-9)


def test_drop_sinks_drops_the_huge_token_alone() -> None:
    states = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    states[0, 0] *= 100
    packed = representation.pack(states, torch.tensor([6, 4]))
    kept = representation.choose(packed, "drop_sinks")
    assert kept.lengths.tolist() == [5, 4]
    torch.testing.assert_close(kept.states[0, :5], states[0, 1:])
    torch.testing.assert_close(kept.states[1, :4], states[1, :4])
    assert kept.states[1, 4:].abs().sum() == 0


def test_repeated_states_have_no_angle_and_are_counted() -> None:
    line = torch.arange(5.0)[:, None] * torch.ones(3)
    stairs = torch.tensor([[0, 0], [1, 0], [1, 1], [2, 1], [2, 2.0]])
    stairs = torch.nn.functional.pad(stairs, (0, 1))
    still = torch.ones(5, 3)
    doubled = line[[0, 1, 1, 2, 3]]
    packed = representation.pack(torch.stack([line, stairs, still, doubled]), torch.full((4,), 5))
    curvature, angles = readout.mean_angle(*readout.angles([readout.steps(packed)])[0])
    assert angles.tolist() == [3, 3, 0, 1]
    np.testing.assert_allclose(curvature[:2], [0, np.pi / 2], atol=1e-7)
    assert torch.isnan(curvature[2])
    assert curvature[3] == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("length", [1, 2])
def test_short_prompts_have_defined_values(length: int) -> None:
    packed = representation.pack(torch.randn(1, length, 4), torch.tensor([length]))
    curvature, angles = readout.mean_angle(*readout.angles([readout.steps(packed)])[0])
    assert torch.isnan(curvature).all()
    assert angles.tolist() == [0]
    nothing = representation.choose(representation.choose(packed, "drop_first"), "drop_first")
    assert nothing.lengths.tolist() == [0]
    assert representation.mean(nothing).abs().sum() == 0


def test_narrow_models_take_more_tokens_at_once_on_a_cpu() -> None:
    assert batches.budget_of("cpu", 64) == 4 * batches.budget_of("cpu", 256)
    assert batches.budget_of("cpu", 256) == batches.budget_of("cpu", 4096) == 1024
    assert batches.budget_of("cuda", 64) == batches.budget_of("cuda", 4096)


def test_batches_keep_the_budget_and_lose_nobody() -> None:
    lengths = [5, 30, 7, 7, 200, 1, 12, 30, 8]
    cut = list(batches.cut(lengths, 64))
    assert sorted(i for b in cut for i in b) == list(range(len(lengths)))
    for batch in cut:
        padded = max(lengths[i] for i in batch) * len(batch)
        assert padded <= 64 or len(batch) == 1
    assert cut[0] == [4]


def test_pads_are_few() -> None:
    rng = np.random.default_rng(0)
    for budget in (1024, 65536):
        lengths = rng.integers(30, 400, 2000).tolist()
        computed = sum(
            len(batch) * max(lengths[i] for i in batch) for batch in batches.cut(lengths, budget)
        )
        assert 1 - sum(lengths) / computed < 0.05


def test_nan_names_model_layer_and_prompt(tmp_path: Path) -> None:
    folder = tiny.save("llama", tmp_path / "m")
    loaded = load("broken", tiny.entry(folder), "main", device="cpu")
    weight = loaded.anatomy.blocks[1].mlp.down_proj.weight
    weight[0, 0] = torch.nan
    with pytest.raises(LayerwiseError, match=r"broken.*layer 2.*'p\d+'.*float32; check"):
        extracted(loaded, tmp_path / "a.h5", budget=64)
    assert not list(tmp_path.glob("**/*.h5*"))


def test_a_failed_run_leaves_the_old_file(tmp_path: Path) -> None:
    folder = tiny.save("llama", tmp_path / "m")
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    path = extracted(loaded, tmp_path / "a.h5", budget=64)
    before = path.read_bytes()
    loaded.anatomy.blocks[0].mlp.down_proj.weight[:] = torch.inf
    with pytest.raises(LayerwiseError):
        extracted(loaded, path, budget=64)
    assert path.read_bytes() == before


def test_xarray_and_h5py_show_names(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    folder = tiny.save("gpt_neox", tmp_path / "m")
    path = extracted(load("m", tiny.entry(folder), "main", device="cpu"), tmp_path / "a.h5", 64)
    with h5py.File(path) as file:
        dims = [d.keys()[0] for d in file["pooled"].dims]
        assert dims == ["protocol", "tokens", "layer", "view", "prompt", "hidden"]
        assert file.attrs["complete"]
        assert len(file.attrs["weights_sha256"]) == 64
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        chosen = data["curvature"].sel(protocol="paper", tokens="all", layer=2, prompt="p3")
        with Activations(path) as file:
            assert float(chosen) == file.curvature("paper", "all", 2)[3]


class TestRefusal:
    @pytest.fixture(scope="class")
    def path(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("refusal")
        loaded = load("m", tiny.entry(tiny.save("llama", folder / "m")), "main", device="cpu")
        return extracted(loaded, folder / "a.h5", budget=64)

    def refused(self, path: Path, match: str, **expected: str) -> None:
        with pytest.raises(LayerwiseError, match=match) as caught:
            Activations(path, **expected)
        assert str(path) in str(caught.value)

    def test_missing(self, tmp_path: Path) -> None:
        self.refused(tmp_path / "none.h5", "There is no file")

    def test_no_hdf5(self, tmp_path: Path) -> None:
        bad = tmp_path / "bad.h5"
        bad.write_text("hello")
        self.refused(bad, "not a readable HDF5 file")

    def test_cut_off(self, path: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.h5"
        bad.write_bytes(path.read_bytes()[:-5000])
        self.refused(bad, "cut off")

    @pytest.mark.parametrize(
        ("attribute", "value", "match"),
        [
            ("schema", "other", "not written by layerwise"),
            ("schema_version", 0, "version 0"),
            ("complete", False, "incomplete"),
        ],
    )
    def test_wrong_attribute(
        self, path: Path, tmp_path: Path, attribute: str, value: object, match: str
    ) -> None:
        bad = tmp_path / "bad.h5"
        bad.write_bytes(path.read_bytes())
        with h5py.File(bad, "a") as file:
            file.attrs[attribute] = value
        self.refused(bad, match)

    def test_wrong_model(self, path: Path) -> None:
        self.refused(path, "about model 'm', wanted was 'other'", model="other")

    def test_changed_byte(self, path: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.h5"
        raw = bytearray(path.read_bytes())
        with h5py.File(path) as file:
            offset = file["pooled"].id.get_chunk_info(0).byte_offset
        raw[offset + 10] ^= 1
        bad.write_bytes(raw)
        with Activations(bad) as file, pytest.raises(LayerwiseError, match="damaged in /pooled"):
            for layer in range(file.n_layers):
                file.views("paper", "all", layer)


def test_spectra_computed_behind_the_pass_are_the_same(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where a batch's results are taken in beside the next one's pass."""
    at_once = extracted(loaded, tmp_path / "at_once.h5", 64)
    monkeypatch.setattr(slabs, "AT_ONCE", set())
    monkeypatch.setattr(slabs, "WAITING_BYTES", {"cpu": 20_000})
    behind = extracted(loaded, tmp_path / "behind.h5", 64)
    with h5py.File(at_once) as a, h5py.File(behind) as b:
        for name in ("pooled", "spectrum", "curvature", "n_tokens"):
            assert np.array_equal(a[name][()], b[name][()], equal_nan=True), name


def test_a_failure_behind_the_pass_is_no_result(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slabs, "AT_ONCE", set())
    monkeypatch.setattr(slabs, "decompose", lambda _many: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        extracted(loaded, tmp_path / "a.h5", 64)
    assert not (tmp_path / "a.h5").exists()


def test_no_memory_behind_the_pass_does_not_cut_the_next_batch(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_many: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(slabs, "AT_ONCE", set())
    monkeypatch.setattr(slabs, "decompose", no_room)
    with pytest.raises(LayerwiseError, match=r"lower extract\.batch_tokens"):
        extracted(loaded, tmp_path / "a.h5", 64)
