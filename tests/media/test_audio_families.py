"""Families of audio models, as tiny random ones: layers, tokens, batches, lengths."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny, tiny_audio
from helpers.kept_states import Keep, States, assert_near, states_of
from helpers.refused import refused
from helpers.tiny_audio import RATE, SECONDS
from safetensors.torch import load_file, save_file

from layerwise.activations import forward
from layerwise.activations.store import Activations
from layerwise.models.load import LoadedModel, load
from layerwise.models.opening import open_model
from layerwise.vocabulary import OUTPUT
from media.audio import Recording, wav

RECORDINGS = tiny_audio.recordings(5)
# Padding changes the states: a norm over time, or convolutions over positions with a bias.
EQUAL_LENGTHS = {
    *("wav2vec2", "hubert", "wavlm", "unispeech_sat", "data2vec_audio", "wav2vec2_conformer")
}


@pytest.fixture(scope="module", params=tiny_audio.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(family: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_audio.save(family, tmp_path_factory.mktemp(family))
    return load(family, tiny.entry(folder), "main", device="cpu")


def passed(loaded: LoadedModel, recordings: Any = RECORDINGS, **options: Any) -> States:
    ((prompts, _),) = loaded.prompts_ahead([recordings])
    return states_of(loaded, prompts, output=True, **options)


def test_layers_are_transformers_own_hidden_states(loaded: LoadedModel, family: str) -> None:
    ours = passed(loaded, budget=10_000)
    samples = RECORDINGS[2].samples(RATE)
    given = tiny_audio.extractor(family)(samples, sampling_rate=RATE, return_tensors="pt")
    with torch.inference_mode():
        out = loaded.model(**given, output_hidden_states=True)
    assert loaded.anatomy.n_layers == len(out.hidden_states) == 4
    n = len(ours[0, "block"][2])
    for layer in range(3):
        theirs = out.hidden_states[layer][0].double().numpy()
        assert_near(ours[layer, "block"][2], theirs[:n], layer)
    assert_near(ours[3, OUTPUT][2], out.last_hidden_state[0, :n].double().numpy(), "output")
    assert len(theirs) == n or family == "whisper"


def test_no_value_depends_on_the_batch(loaded: LoadedModel, family: str) -> None:
    assert loaded.anatomy.equal_lengths == (family in EQUAL_LENGTHS)
    alone, batched = (passed(loaded, budget=budget) for budget in (1, 10_000))
    for where, states in alone.items():
        for number, expected in enumerate(states):
            assert np.isfinite(expected).all()
            assert_near(batched[where][number], expected, (where, number))
    assert not loaded.is_causal
    with torch.inference_mode():
        other = passed(loaded, RECORDINGS[1:2])[3, "block"][0]
    assert_near(other, alone[3, "block"][1], "alone in its corpus")


def test_tokens_are_the_frames_of_the_recording(loaded: LoadedModel, family: str) -> None:
    sizes = (RATE // 100, RATE // 2, RATE, 3 * RATE)
    noise = np.random.default_rng(0).normal(0, 0.1, 3 * RATE).astype(np.float32)
    given = [Recording(str(n), wav(noise[:n], RATE)) for n in sizes]
    ((prompts, n_cut),) = loaded.prompts_ahead([given])
    lengths = [len(prompt) for prompt in prompts]
    if family == "ast":
        assert lengths == [loaded.max_length] * 4
        assert [n > 0 for n in n_cut] == [False, False, False, True]  # it reads one second
    else:  # 50 tokens a second, and a last one that is not whole
        assert all(
            abs(n - 50 * size / RATE) < 2 for n, size in zip(lengths, sizes[:3], strict=False)
        )
        assert lengths[3] == (50 * SECONDS if family == "whisper" else pytest.approx(150, abs=2))
        assert [n > 0 for n in n_cut] == [False, False, False, family == "whisper"]
    states = passed(loaded, given)
    assert [len(one) for one in states[2, "block"]] == lengths


def test_a_model_in_memory_is_left_as_it_was(loaded: LoadedModel) -> None:
    loaded.model.train()
    before = tiny.facts(loaded.model)
    with open_model(loaded.model, loaded.reader.extractor) as opened:  # type: ignore[union-attr]
        found = passed(opened)
    assert tiny.facts(loaded.model) == before
    loaded.model.eval()
    assert_near(found[3, "block"][0], passed(loaded)[3, "block"][0], "in memory")


@pytest.mark.parametrize("family_", ["wav2vec2_large", "whisper", "wav2vec2_bert"])
def test_long_recordings_are_cut_to_max_length(family_: str, tmp_path: Path) -> None:
    folder = tiny_audio.save(family_, tmp_path / "m")
    short = load("m", tiny.entry(folder, max_length=20), "main", device="cpu")
    ((prompts, n_cut),) = short.prompts_ahead([RECORDINGS])
    whole = load("m", tiny.entry(folder), "main", device="cpu")
    ((all_of, _),) = whole.prompts_ahead([RECORDINGS])
    lengths = [len(prompt) for prompt in all_of]
    assert [len(prompt) for prompt in prompts] == [min(n, 20) for n in lengths]
    assert [n > 0 for n in n_cut] == [n > 20 for n in lengths]
    longest = int(np.argmax(lengths))
    start = RECORDINGS[longest].samples(RATE)[: short.reader.most]  # type: ignore[union-attr]
    first = passed(whole, [Recording("start", wav(start, RATE))])[2, "block"][0]
    assert_near(passed(short)[2, "block"][longest], first, "cut")


def test_a_recording_of_another_rate_is_resampled(tmp_path: Path) -> None:
    folder = tiny_audio.save("wav2vec2_large", tmp_path / "m")
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    tones = []
    for rate in (16_000, 44_100, 8_000):
        time = np.arange(rate) / rate
        tones.append(Recording(str(rate), wav(np.float32(np.sin(880 * np.pi * time)), rate)))
    states = passed(loaded, tones)[3, "block"]
    off = [np.abs(one[5:-5] - states[0][5:-5]).mean() / np.abs(states[0]).mean() for one in states]
    assert max(off) < 0.05


def test_choices_of_tokens_of_a_spectrogram_transformer(tmp_path: Path) -> None:
    folder = tiny_audio.save("ast", tmp_path / "m")
    loaded = load("ast", tiny.entry(folder), "main", device="cpu")
    tokens = ("all", "patches", "class")
    path = tiny.extracted(loaded, tmp_path / "a.h5", RECORDINGS, tokens=tokens)
    states = passed(loaded)[2, "block"]
    with Activations(path) as file:
        for number, own in enumerate(states):
            # Behind the class token there is one of distillation.
            means = {"all": own.mean(0), "patches": own[2:].mean(0), "class": own[0]}
            for name in tokens:
                assert_near(file.pooled("paper", name, 2)[number], means[name], name)
    folder = tiny_audio.save("wav2vec2", tmp_path / "w")
    loaded = load("w", tiny.entry(folder), "main", device="cpu")
    with refused("unsupported"):
        loaded.check_tokens(["patches"])


def test_sublayers_add_up_or_are_refused(tmp_path: Path) -> None:
    for family in ("wavlm_large", "whisper", "ast"):
        large = load("m", tiny.entry(tiny_audio.save(family, tmp_path / family)), "main")
        states = passed(large, sublayers=large.anatomy.sublayers)
        for number in range(len(RECORDINGS)):
            parts = [states[2, part][number] for part in ("mixer_residual", "mlp")]
            assert_near(sum(parts), states[2, "block"][number], family)
    for family in ("wavlm", "wav2vec2_conformer", "wav2vec2_bert"):
        base = load("m", tiny.entry(tiny_audio.save(family, tmp_path / family)), "main")
        with refused("unsupported"):
            passed(base, sublayers=["mlp"])


def test_models_of_other_prompts(tmp_path: Path) -> None:
    loaded = load("m", tiny.entry(tiny_audio.save("hubert", tmp_path / "m")), "main")
    with refused("conflict"):
        list(loaded.prompts_ahead([[RECORDINGS[0], "a text"]]))
    with refused("conflict"):
        list(tiny.loaded("bert", tmp_path / "t").prompts_ahead([RECORDINGS]))
    with refused("conflict"):
        load("m", tiny.entry(tmp_path / "m", prompts={"query": "q: "}), "main")


def test_a_batch_counts_the_silence_that_whisper_reads(tmp_path: Path) -> None:
    loaded = load("m", tiny.entry(tiny_audio.save("whisper", tmp_path / "m")), "main")
    ((prompts, _),) = loaded.prompts_ahead([RECORDINGS])
    sizes: list[int] = []

    def start(rows: list[int]) -> Keep:
        sizes.append(len(rows))
        return Keep({}, rows, len(prompts))

    forward.run(loaded, prompts, start, budget=2 * 50 * SECONDS)
    assert sizes == [2, 2, 1]


def test_equal_lengths_are_those_of_the_samples(tmp_path: Path) -> None:
    folder = tiny_audio.save("wav2vec2", tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["masked_spec_embed"]  # as in published checkpoints: it is for training
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    loaded = load("m", tiny.entry(folder), "main")
    whole = RECORDINGS[0].samples(RATE)
    # As many frames, and other samples.
    given = [Recording(str(n), wav(whole[: 8100 + n], RATE)) for n in (0, 100)]
    ((prompts, _),) = loaded.prompts_ahead([given])
    assert len(prompts[0]) == len(prompts[1])
    together = passed(loaded, given, budget=10_000)[3, "block"]
    for number, one in enumerate(given):
        assert_near(together[number], passed(loaded, [one])[3, "block"][0], number)
