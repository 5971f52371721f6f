"""One forward pass to a file: what is in it is what the model does, whatever the batch."""

import itertools
import json
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.kept_states import States, states_of
from helpers.refused import refused

from layerwise.activations import eigen, forward
from layerwise.activations import extract as module
from layerwise.activations.embedding import spans, words_of
from layerwise.activations.reduce import Needs, Reduced, complete
from layerwise.activations.representation import (
    Packed,
    Representation,
    after,
    inside,
    pack,
    pool,
    select_tokens,
)
from layerwise.activations.store import Activations
from layerwise.config.settings import MetricsSettings
from layerwise.errors import Code, LayerwiseError
from layerwise.io import hdf5
from layerwise.metrics.table import compute
from layerwise.models.load import LoadedModel
from layerwise.vocabulary import POOLINGS

TOKENS = ("all", "drop_first", "drop_sinks")
EVERYTHING: dict[str, Any] = {
    "tokens": TOKENS,
    "protocols": ("paper", "reference"),
    "batch_tokens": 64,
}
N = 12
TEXTS = tiny.texts(N, seed=0)


@pytest.fixture(
    scope="module", params=tiny.families(["llama", "bert", "mamba2"], ["llama", "bert"])
)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    return tiny.loaded(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture
def llama(tmp_path: Path) -> LoadedModel:
    return tiny.loaded("llama", tmp_path)


def extracted(
    loaded: LoadedModel, target: Path, views: list[list[str]] | None = None, **settings: Any
) -> Path:
    return tiny.extracted(loaded, target, *(views or [TEXTS]), **{**EVERYTHING, **settings})


def arrays(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        names = ("pooled", "spectrum", "norm", "curvature", "n_tokens")
        return {name: file[name][()] for name in names}


def close(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name, values in theirs.items():
        size = np.nanmax(np.abs(values))
        np.testing.assert_allclose(ours[name], values, rtol=1e-4, atol=1e-5 * size, err_msg=name)


def passed(loaded: LoadedModel) -> States:
    """The states that the pass hands over, of each layer and prompt."""
    return states_of(loaded, loaded.texts.prompts(TEXTS)[0], output=True, budget=64)


# The pass


def test_arrays_and_dimensions_say_what_they_are(llama: LoadedModel, tmp_path: Path) -> None:
    asked = {
        "token_states": True,
        "arrays": ("dimension", "dimension_share", "first_token_attention", "prefix_spectrum"),
    }
    units = {
        "pooled": "activation",
        "n_tokens": "token",
        "spectrum": "activation^2",
        "norm": "activation",
        "curvature": "radian",
        "prefix_spectrum": "activation^2",
        "token_states": "activation",
        "first_token_attention": "",
        "dimension": "",
        "dimension_share": "",
    }
    with h5py.File(extracted(llama, tmp_path / "a.h5", **asked)) as file:
        texts = {name: hdf5.attributes(item) for name, item in file.items()}
        arrays = {name for name in texts if not file[name].is_scale}
        for name in arrays:
            dimensions = file[name].dims
            assert [axis.label for axis in dimensions] == [axis.keys()[0] for axis in dimensions]
    assert {name: texts[name]["unit"] for name in arrays} == units
    assert all(text["description"] for text in texts.values())


def test_values_do_not_depend_on_the_batch(loaded: LoadedModel, tmp_path: Path) -> None:
    alone, together = (
        arrays(extracted(loaded, tmp_path / f"{n}.h5", batch_tokens=n)) for n in (1, 10_000)
    )
    close(together, alone)
    np.testing.assert_array_equal(alone["n_tokens"], together["n_tokens"])


def test_windows_leave_no_seam(
    llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts are taken window by window; where one ends must not show in the file."""
    texts = [tiny.texts(70, seed=v) for v in range(2)]
    files = []
    for bytes_at_once in (2**30, 1):
        monkeypatch.setitem(forward.WINDOW_BYTES, "cpu", bytes_at_once)
        path = tmp_path / f"{bytes_at_once}.h5"
        files.append(extracted(llama, path, texts, protocols=("paper",), batch_tokens=500))
    close(*map(arrays, files))


@pytest.mark.parametrize("kind", [True, "float16"])
def test_token_states_are_those_of_the_pass(
    llama: LoadedModel, tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forward.WINDOW_BYTES, "cpu", 1)  # several windows
    readout, last = ("residual", "block") if kind is True else ("output", "output")
    asked = {"token_states": kind, "layers": (3, 1), "readout": readout}
    path = extracted(llama, tmp_path / "a.h5", [TEXTS, TEXTS[::-1]], **asked)
    ids, _ = llama.texts.prompts(TEXTS)
    states = passed(llama)
    with h5py.File(path) as file:
        offsets, kept = file["offset"][:], file["token_states"]
        assert kept.dtype == (np.float32 if kind is True else np.float16)
        assert file["token_layer"][:].tolist() == [3, 1]
        for n, prompt in enumerate(ids):
            part = slice(offsets[n], offsets[n + 1])
            assert file["token"][part].tolist() == list(prompt)
            for place, source in enumerate([(3, last), (1, "block")]):
                expected = states[source][n]
                rtol = 1e-4 if kind is True else 1e-3
                np.testing.assert_allclose(kept[place, part], expected, rtol, atol=rtol)
    with refused("unknown_name"):
        extracted(llama, tmp_path / "b.h5", **{**asked, "layers": (4,)})


def test_states_too_large_for_float16_are_refused(llama: LoadedModel, tmp_path: Path) -> None:
    with torch.no_grad():
        llama.model.get_input_embeddings().weight *= 1e7
    with refused("out_of_range"):
        extracted(llama, tmp_path / "a.h5", token_states="float16")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 2.00 TiB for an array"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("CUDA error: out of memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        None,
    ],
)
def test_running_out_of_memory_halves_the_batch(
    llama: LoadedModel, tmp_path: Path, error: Exception | None
) -> None:
    sizes = []

    def full(_: object, arguments: tuple[torch.Tensor, ...]) -> None:
        sizes.append(len(arguments[0]))
        if len(arguments[0]) > 3 and error is None:
            torch.empty(10**15)  # more than any machine has: what the allocator itself says
        elif len(arguments[0]) > 3:
            raise error or AssertionError

    llama.anatomy.blocks[1].register_forward_pre_hook(full)
    halved = extracted(llama, tmp_path / "a.h5", batch_tokens=10_000)
    assert sizes[:6] == [12, 6, 3, 3, 3, 3]
    llama.anatomy.blocks[1]._forward_pre_hooks.clear()
    close(arrays(halved), arrays(extracted(llama, tmp_path / "b.h5", batch_tokens=10_000)))


def test_one_prompt_that_does_not_fit_and_other_errors(llama: LoadedModel, tmp_path: Path) -> None:
    def fail(message: str) -> None:
        raise RuntimeError(message)

    block = llama.anatomy.blocks[1]
    for said, kind, match in (
        ("CUDA error: out of memory", LayerwiseError, "does not fit one prompt"),
        ("size mismatch", RuntimeError, "size mismatch"),
    ):
        hook = block.register_forward_pre_hook(lambda *_, said=said: fail(said))
        with pytest.raises(kind, match=match):
            extracted(llama, tmp_path / "a.h5")
        hook.remove()


def test_batches_keep_the_budget_lose_nobody_and_have_few_pads() -> None:
    lengths = [5, 30, 7, 7, 200, 1, 12, 30, 8]
    cut = list(forward.batches(lengths, 64))
    assert sorted(i for batch in cut for i in batch) == list(range(len(lengths)))
    assert all(max(lengths[i] for i in b) * len(b) <= 64 or len(b) == 1 for b in cut)
    assert cut[0] == [4]
    for budget in (1024, 65536):
        many = np.random.default_rng(0).integers(30, 400, 2000).tolist()
        computed = sum(len(b) * max(many[i] for i in b) for b in forward.batches(many, budget))
        assert 1 - sum(many) / computed < 0.05


# What is kept


def test_what_is_kept_follows_from_the_states(loaded: LoadedModel, tmp_path: Path) -> None:
    """Both protocols against numpy; `reference` reads the model's output at the last layer."""
    states = passed(loaded)
    with Activations(extracted(loaded, tmp_path / "a.h5")) as file:
        for layer in range(file.n_layers):
            norms = file.norms(layer)
            handed = "output" if layer == file.n_layers - 1 else "block"
            for prompt, first in ((0, 0), (1, 0), (2, 1)):
                tokens = TOKENS[first]
                z = states[layer, "block"][prompt]
                length = np.linalg.norm(z, axis=1)
                np.testing.assert_allclose(norms[prompt, : len(z)], length, rtol=1e-5)
                assert np.isnan(norms[prompt, len(z) :]).all()
                z = z[first:]
                pooled = file.pooled("paper", tokens, layer)[prompt]
                np.testing.assert_allclose(pooled, z.mean(axis=0), rtol=1e-4, atol=1e-5)
                singular = np.linalg.svd(z, compute_uv=False) ** 2
                spectrum = file.spectrum("paper", tokens, layer)[prompt]
                np.testing.assert_allclose(
                    spectrum[: len(singular)], singular, rtol=1e-6, atol=1e-8 * singular[0]
                )
                assert np.all(spectrum[len(singular) :] <= 1e-8 * singular[0])
                found = file.curvature("paper", tokens, layer)[prompt]
                np.testing.assert_allclose(found, angle(np.diff(z, axis=0)), atol=1e-5)

                z = states[layer, handed][prompt][first:]
                unit = z - z.mean(axis=0)
                unit /= np.linalg.norm(unit, axis=1, keepdims=True)
                product = unit @ unit.T if len(z) <= z.shape[1] else unit.T @ unit
                clamped = np.linalg.eigvalsh(np.maximum(product, 0))
                ours = file.spectrum("reference", tokens, layer)[prompt]
                assert np.all(np.diff(np.abs(ours)) <= 1e-9), "largest magnitude first"
                np.testing.assert_allclose(
                    np.sort(ours[np.abs(ours) > 1e-5]),
                    clamped[np.abs(clamped) > 1e-5],
                    rtol=1e-4,
                    atol=1e-6,
                )
                pooled = file.pooled("reference", tokens, layer)[prompt]
                np.testing.assert_allclose(pooled, z.mean(axis=0), rtol=1e-4, atol=1e-5)
                found = file.curvature("reference", tokens, layer)[prompt]
                turn = angle(np.diff(unit, axis=0), least=0.0)
                np.testing.assert_allclose(found, turn, rtol=1e-5)


def angle(vectors: np.ndarray, least: float = -1.0) -> float:
    """Mean angle of successive vectors; with `least` 0 of the absolute cosine."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = (unit[1:] * unit[:-1]).sum(1)
    return float(np.arccos(np.clip(np.abs(cosine) if least == 0 else cosine, least, 1)).mean())


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_protocol_does_not_depend_on_what_else_is_kept(family: str, tmp_path: Path) -> None:
    loaded = tiny.loaded(family, tmp_path)
    views = [TEXTS, TEXTS[::-1]]

    def file(**settings: Any) -> dict[str, np.ndarray]:
        return arrays(extracted(loaded, tmp_path / "a.h5", views, **settings))

    both = file()
    with h5py.File(tmp_path / "a.h5") as opened:
        assert json.loads(opened.attrs["readouts"]) == {"paper": "residual", "reference": "output"}
    paper, reference = file(protocols=("paper",)), file(protocols=("reference",))
    handed = file(readout="output")
    for name in both.keys() - {"norm"}:
        np.testing.assert_array_equal(both[name][:1], paper[name], name)
        np.testing.assert_array_equal(both[name][1:], reference[name], name)
        np.testing.assert_array_equal(handed[name][1:], reference[name], name)
    np.testing.assert_array_equal(both["norm"], reference["norm"])
    np.testing.assert_array_equal(both["pooled"][:, :, :3], handed["pooled"][:, :, :3])
    if loaded.anatomy.final_norm is None:
        np.testing.assert_array_equal(both["pooled"], handed["pooled"])
        with refused("unknown_name"):
            file(readout="final_norm")
        return
    normed = file(readout="final_norm")["pooled"]
    assert not np.array_equal(normed[0, :, 1], handed["pooled"][0, :, 1])
    np.testing.assert_allclose(normed[0, :, 3], handed["pooled"][0, :, 3], rtol=1e-3, atol=1e-5)
    assert np.abs(normed[0, :, 3] - both["pooled"][0, :, 3]).max() > 0.01


def test_sinks_are_counted_in_what_a_protocol_reads(llama: LoadedModel, tmp_path: Path) -> None:
    """A token with a huge state in the stream is no sink after the model's last norm."""
    llama.model.get_input_embeddings().weight[5] *= 1000
    ids = llama.texts.tokenizer(tiny.SENTENCE)["input_ids"][:20]
    text = llama.texts.tokenizer.decode([*ids[:7], 5, *ids[7:]])
    ids = llama.texts.tokenizer(text)["input_ids"]
    assert ids.count(5) == 1
    with Activations(extracted(llama, tmp_path / "a.h5", [[text]])) as file:
        left = {
            (protocol, layer): len(ids) - file.n_tokens(protocol, "drop_sinks", layer)[0]
            for protocol in file.protocols
            for layer in (2, 3)
        }
    assert left == {("paper", 2): 1, ("reference", 2): 1, ("paper", 3): 1, ("reference", 3): 0}


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_the_states_of_a_layer_are_not_kept(protocol: str) -> None:
    """Those of all layers together may not fit into memory."""
    packed = pack(torch.randn(2, 6, 8), torch.tensor([6, 3]))
    states = weakref.ref(packed.states)
    reduced = Reduced(packed, Needs((protocol,), ("all", "drop_first"), arrays=tiny.PREFIXES))
    del packed
    assert states() is None
    assert reduced.pending_spectra


def test_repeated_states_have_no_angle() -> None:
    line = torch.arange(5.0)[:, None] * torch.ones(3)
    stairs = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [2, 1, 0], [2, 2, 0.0]])
    doubled = line[[0, 1, 1, 2, 3]]
    states = torch.stack([line, stairs, torch.ones(5, 3), doubled])
    found = eigen.curvature(eigen.token_products(states), torch.full((4,), 5)).numpy()
    np.testing.assert_allclose(found, [0, np.pi / 2, np.nan, 0], atol=1e-7)


def test_a_zero_step_has_angle_zero_under_reference() -> None:
    rows = torch.tensor([[[1.0, 0], [1, 0], [0, 1], [-1, 0]]]).double()
    gram = rows @ rows.transpose(1, 2)
    found = eigen.curvature(eigen.diagonals(gram), torch.tensor([4]), torch.zeros(1, 4))
    assert found.item() == pytest.approx(np.pi / 4), "the mean of 0 and a right angle"


def test_a_token_repeated_has_no_rounding_for_a_value(tmp_path: Path) -> None:
    # Without absolute positions and a first token of their own all states are equal, but for
    # rounding, which differs from batch to batch.
    model = tiny.loaded("gpt_neox", tmp_path)
    texts = ["." * 90, "=" * 61, "." * 33, *tiny.texts(5, seed=1)]
    alone, together = (
        arrays(
            extracted(model, tmp_path / "a.h5", [texts], tokens=("drop_first",), batch_tokens=n)
        )
        for n in (1, 10_000)
    )
    assert np.isnan(alone["curvature"][0, ..., :3]).all()
    assert not alone["curvature"][1, ..., :3].any(), "under reference a zero step has angle 0"
    assert not np.isnan(alone["curvature"][..., 3:]).any()
    close(together, alone)


def test_nan_names_model_layer_and_prompt_and_the_old_file_stays(
    llama: LoadedModel, tmp_path: Path
) -> None:
    path = extracted(llama, tmp_path / "a.h5")
    before = path.read_bytes()
    llama.anatomy.blocks[1].mlp.down_proj.weight[0, 0] = torch.nan
    with refused("not_finite"):
        extracted(llama, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), r"lower extract\.batch_tokens"),
        (ValueError("odd"), "odd"),
    ],
)
def test_a_failure_beside_the_pass_is_no_result(
    error: Exception,
    match: str,
    llama: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where a batch's spectra are computed beside the next one's pass."""

    def fail(_many: object) -> None:
        raise error

    monkeypatch.setattr(module, "AT_ONCE", ())
    monkeypatch.setattr(module, "complete", fail)
    with pytest.raises((LayerwiseError, ValueError), match=match):
        extracted(llama, tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()


# Representations


def test_poolings_are_what_they_say() -> None:
    states = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    lengths = [6, 4, 1]
    packed = pack(states, torch.tensor(lengths))
    for names in itertools.product(("all", "drop_first"), POOLINGS):
        selection = Representation(*names)
        found = pool(select_tokens(packed, selection.tokens), selection.pooling)
        for row, n in enumerate(lengths):
            z = states[row, int(selection.tokens == "drop_first") : n].numpy()
            weights = np.arange(1, len(z) + 1)
            if not len(z):
                assert not found[row].any(), "nothing counts"
                continue
            wanted = {
                "mean": z.mean(axis=0),
                "weighted_mean": (weights[:, None] * z).sum(axis=0) / weights.sum(),
                "max": z.max(axis=0),
                "last_token": z[-1],
                "cls": z[0],
            }[selection.pooling]
            np.testing.assert_allclose(found[row], wanted, rtol=1e-5, err_msg=str(selection))
    assert str(Representation("all", "max", "final_norm")) == "all/max/final_norm"


def test_the_first_token_alone_is_kept_in_memory() -> None:
    pooled = pool(pack(torch.randn(2, 50, 4), torch.tensor([50, 30])), "cls")
    assert pooled.untyped_storage().nbytes() == pooled.nbytes


def test_a_words_tokens_are_those_that_share_a_character() -> None:
    """SentencePiece's tokens hold the space in front of a word."""
    offsets = [(0, 0), (0, 3), (3, 6), (6, 9), (9, 13), (0, 0)]
    loaded: Any = SimpleNamespace(texts=SimpleNamespace(offsets=lambda _: [offsets]))
    found = spans(loaded, words_of(["the", "quick", "fox"]))[1]
    assert [(start, stop) for _, start, stop in found] == [(1, 2), (2, 4), (4, 5)]


def test_spans_and_what_follows_a_prompt() -> None:
    states = torch.arange(12.0).reshape(1, 6, 2) + 1
    packed = pack(states.repeat(2, 1, 1), torch.tensor([6, 4]))
    rows, starts, stops = torch.tensor([[0, 0, 1], [0, 2, 1], [2, 5, 1]])
    for tokens, lengths in (("all", [2, 3, 0]), ("drop_first", [1, 3, 0])):
        within = inside(packed, tokens, rows, starts, stops, int((stops - starts).max()))
        assert within.lengths.tolist() == lengths
        torch.testing.assert_close(within.mean[1], states[0, 2:5].mean(0))
    rest = after(packed, torch.tensor([2, 5]))
    assert rest.lengths.tolist() == [4, 0]
    torch.testing.assert_close(rest.states[0, :4], states[0, 2:])
    weights = torch.arange(3.0, 7)[:, None]
    wanted = (weights * states[0, 2:]).sum(0) / weights.sum()
    found = pool(rest, "weighted_mean", torch.tensor([2, 5]))
    torch.testing.assert_close(found[0], wanted)


def test_pads_do_not_count_even_if_they_are_nan() -> None:
    states = torch.ones(1, 3, 2)
    states[0, 2] = torch.nan
    assert isinstance(pack(states, torch.tensor([2])), Packed)
    assert pack(states, torch.tensor([2])).mean.tolist() == [[1, 1]]


# The file


def test_arrays_added_to_a_file_are_those_of_one_pass(llama: LoadedModel, tmp_path: Path) -> None:
    views, needed = [TEXTS, TEXTS[::-1]], ("dimension", "largest_activation", "prefix_spectrum")
    settings = {"sublayers": ("mlp",), "token_states": True, "arrays": needed}
    whole = extracted(llama, tmp_path / "whole.h5", views, **settings)
    base = extracted(llama, tmp_path / "base.h5", views, **{**settings, "arrays": needed[:1]})
    added = extracted(
        llama, tmp_path / "added.h5", views, **{**settings, "arrays": needed[1:]}, base=base
    )
    with h5py.File(whole) as expected, h5py.File(added) as file:
        stored: list[dict[str, bytes]] = [{}, {}]
        for number, each in enumerate((expected, file)):
            for group in ("/", "sublayers/mlp"):
                for name, item in each[group].items():
                    if isinstance(item, h5py.Dataset):
                        stored[number][group + name] = item[()].tobytes()
            stored[number]["attributes"] = repr(sorted(each.attrs.items())).encode()
        assert stored[0].keys() > {f"/{name}" for name in needed}
        assert stored[0] == stored[1]


def everything(path: Path) -> list[Any]:
    """All that `Activations` reads of a file, for comparisons by `repr`."""
    with Activations(path) as file:
        of_layers = [
            [
                file.views("paper", "all", layer).tobytes(),
                file.n_tokens("paper", "all", layer).tobytes(),
                file.spectrum("paper", "all", layer).tobytes(),
                file.curvature("paper", "all", layer).tobytes(),
                file.norms(layer).tobytes(),
                [(t, values.tobytes()) for t, values in file.prefixes("all", layer).items()],
            ]
            for layer in file.layers
        ]
        attributes = sorted(f"{key}={value}" for key, value in file.attributes.items())
        return [file.protocols, file.tokens, file.prompts, attributes, of_layers]


def test_a_damaged_file_is_named_or_read_as_it_was(llama: LoadedModel, tmp_path: Path) -> None:
    path = extracted(llama, tmp_path / "a.h5", [TEXTS[:3]], tokens=("all",), arrays=tiny.PREFIXES)
    content, expected = path.read_bytes(), repr(everything(path))
    rng = np.random.default_rng(0)
    places = [*rng.integers(len(content), size=250), *range(0, 4000, 40)]
    n_refused = 0
    for place in places:
        altered = bytearray(content)
        altered[place] ^= 1 << int(place) % 8
        path.write_bytes(altered)
        try:
            assert repr(everything(path)) == expected, f"byte {place} is altered in silence"
        except LayerwiseError as error:
            n_refused += 1
            assert str(path) in str(error) and "delete it" in str(error)
    assert n_refused > len(places) / 2


def relabel(path: Path, attribute: str, value: Any) -> None:
    with h5py.File(path, "a") as file:
        hdf5.set_attribute(file, attribute, value)


class TestRefusal:
    @pytest.fixture(scope="class")
    def path(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("refusal")
        return extracted(tiny.loaded("llama", folder), folder / "a.h5")

    @pytest.mark.parametrize(
        ("spoil", "code"),
        [
            (lambda path: path.unlink(), "missing_file"),
            (lambda path: path.write_bytes(b"hello"), "unreadable"),
            (lambda path: path.write_bytes(path.read_bytes()[:-5000]), "unreadable"),
            (lambda path: relabel(path, "schema", "other"), "mismatch"),
            (lambda path: relabel(path, "schema_version", 0), "mismatch"),
            (lambda path: relabel(path, "model", "other"), "mismatch"),
        ],
    )
    def test_another_file(self, path: Path, tmp_path: Path, spoil: Any, code: Code) -> None:
        bad = Path(shutil.copy(path, tmp_path))
        spoil(bad)
        with refused(code) as caught:
            Activations(bad, model="llama")
        assert str(bad) in str(caught.value)


# Sublayers and prefixes


def test_sublayers_that_a_model_lacks_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = tiny.loaded("mamba", tmp_path)
    path = extracted(loaded, tmp_path / "a.h5", sublayers=("mixer", "mlp"))
    assert "mamba (architecture 'mamba') has no mlp" in caplog.text
    with Activations(path, sublayer="mixer") as file:
        assert file.sublayers == ("block", "mixer")
        assert file.layers == range(1, 4)
    with pytest.raises(LayerwiseError, match=r"no sublayer 'mixr'.*did you mean 'mixer'"):
        Activations(path, sublayer="mixr")


def test_a_prompt_shorter_than_a_prefix_has_none() -> None:
    packed = pack(torch.randn(2, 6, 4), torch.tensor([6, 3]))
    tokens = ("all", "drop_first", "drop_sinks")
    kept = Reduced(packed, Needs(("paper",), tokens, arrays=tiny.PREFIXES))
    complete([kept])
    found = kept.arrays["prefix_spectrum"]
    assert found.shape == (2, 2, 2 + 3 + 4 + 6), "not of drop_sinks"
    assert found[:, 1, 5:].eq(0).all()
    assert found[0, 1, :5].gt(0).all()


def test_models_that_are_not_causal_have_no_prefixes(tmp_path: Path) -> None:
    path = extracted(tiny.loaded("bert", tmp_path), tmp_path / "a.h5", arrays=tiny.PREFIXES)
    with Activations(path) as file, refused("missing"):
        file.prefixes("all", 1)


# Attention to the first token


@pytest.mark.parametrize("family", tiny.families(["llama", "gpt_neox", "jamba"], ["llama"]))
def test_attention_to_the_first_token_is_the_models(family: str, tmp_path: Path) -> None:
    """Against transformers' attentions of each prompt alone; other arrays do not change."""
    loaded = tiny.loaded(family, tmp_path)
    before = loaded.model.config._attn_implementation
    # In one batch, so that there are pads.
    path = extracted(loaded, tmp_path / "a.h5", arrays=tiny.ATTENTION, batch_tokens=10_000)
    assert loaded.model.config._attn_implementation == before
    close(arrays(path), arrays(extracted(loaded, tmp_path / "b.h5")))
    loaded.model.set_attn_implementation("eager")
    settings = MetricsSettings(metrics=("sink_rate",), settings={"sink_rate": {"threshold": 0.2}})
    with Activations(path) as file:
        rates = compute(file, settings)[1].set_index(["layer", "prompt_id"])["value"]
        attention = {n: file.array(*tiny.ATTENTION, "all", n) for n in file.layers}
        layers = [n for n in file.layers if np.isfinite(attention[n]).any()]
        assert set(layers) == set(rates.index.get_level_values("layer"))
        for i in (0, 3, 7):
            ids = torch.tensor([loaded.texts.prompts([TEXTS[i]])[0][0]])
            with torch.inference_mode():
                weights = loaded.model(ids, output_attentions=True, use_cache=False).attentions
            means = [w[0, :, :, 0].mean(dim=1).numpy() for w in weights if w is not None]
            assert len(means) == len(layers)
            for layer, own in zip(layers, means, strict=True):
                assert attention[layer][i] == pytest.approx(own, rel=1e-4)
                assert rates[layer, f"p{i}"] == (own > 0.2).mean()


@pytest.mark.parametrize("family", ["bert", "mamba2"])
def test_models_without_causal_attention_have_none(family: str, tmp_path: Path) -> None:
    path = extracted(tiny.loaded(family, tmp_path), tmp_path / "a.h5", arrays=tiny.ATTENTION)
    with Activations(path) as file:
        assert "first_token_attention" not in file.arrays
        assert compute(file, MetricsSettings(metrics=("sink_rate",)))[0].empty
