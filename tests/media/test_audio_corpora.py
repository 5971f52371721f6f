"""Audio corpora: files, sources, views, the tables, labels and tasks."""

import io
import json
import struct
import sys
import wave
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers import tiny, tiny_audio
from helpers.refused import refused
from helpers.tiny_audio import RATE
from typer.testing import CliRunner

import layerwise as lw
from layerwise.analysis import prompts_of
from layerwise.cli import app
from layerwise.config import Config
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.corpora import prompts
from layerwise.corpora.prompts import make_corpus, make_views
from layerwise.models.load import load
from layerwise.run.plan import Plan
from layerwise.section import parse
from layerwise.tasks.evaluate import TaskScores, score_tasks
from layerwise.tasks.mteb_task import MtebTask
from layerwise.tasks.task import set_up
from media import audio
from media.audio import Recording, decode, resampled, wav
from media.images import Picture, png
from media.settings import AudioCorpus, AudioViews
from media.sources import UnreadableError

TONE = np.sin(2 * np.pi * 440 * np.arange(RATE // 4) / RATE).astype(np.float32)


def of_three_bytes(samples: np.ndarray) -> bytes:
    """A WAV file of 24 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 3, RATE, 0, "NONE", ""))
        whole = np.round(samples * (2**23 - 1)).astype("<i4")
        out.writeframes(whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
    return file.getvalue()


def big_endian(samples: np.ndarray) -> bytes:
    data = np.round(samples * 32767).astype(">i2").tobytes()
    about = struct.pack(">IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    chunks = b"WAVEfmt " + about + b"data" + struct.pack(">I", len(data)) + data
    return b"RIFX" + struct.pack(">I", len(chunks)) + chunks


def test_all_kinds_of_wav_hold_the_same_samples() -> None:
    kinds = {
        "float": (wav(TONE, RATE), 0),
        "double": (wav(TONE.astype(np.float64), RATE), 0),
        "16 bits": (wav(np.round(TONE * 32767).astype(np.int16), RATE), 1e-4),
        "big-endian": (big_endian(TONE), 1e-4),
        "32 bits": (wav(np.round(TONE * (2**31 - 256)).astype(np.int32), RATE), 1e-6),
        "24 bits": (of_three_bytes(TONE), 1e-6),
        "8 bits": (wav(np.round(TONE * 127 + 128).astype(np.uint8), RATE), 0.02),
        "stereo": (wav(np.stack([TONE * 2, TONE * 0], axis=1), RATE), 0),
    }
    for kind, (data, tolerance) in kinds.items():
        samples, rate = decode(data, kind)
        assert rate == RATE and samples.dtype == np.float32
        np.testing.assert_allclose(samples, TONE, atol=tolerance, err_msg=kind)
    for values in (np.array([-(2**15), 2**14, 0], np.int16), np.array([0, 192, 128], np.uint8)):
        assert decode(wav(values, RATE), "whole")[0].tolist() == [-1, 0.5, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no sound",
        wav(TONE, RATE)[:900],
        wav(TONE, RATE)[:-400],
        wav(TONE[:0], RATE),
        wav(TONE * np.nan, RATE),
        wav(TONE, 12),
        b"RIFF" + bytes(40),
    ],
    ids=["empty", "text", "cut", "cut between samples", "no samples", "NaN", "slow", "header"],
)
def test_damaged_recordings_are_named(data: bytes) -> None:
    with pytest.raises(UnreadableError, match="odd"):
        decode(data, "odd")


def test_other_formats_need_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with refused("missing_extra"):
        decode(b"fLaC" + bytes(60), "odd")


def test_resampling_keeps_a_tone() -> None:
    for rate in (8_000, 22_050, 44_100, 48_000):
        time = np.arange(rate) / rate
        found = resampled(np.sin(880 * np.pi * time).astype(np.float32), rate, RATE)
        expected = np.sin(880 * np.pi * np.arange(RATE) / RATE)
        assert len(found) == Recording("a", wav(np.zeros(rate), rate)).n_samples(RATE) == RATE
        assert np.abs(found - expected)[200:-200].max() < 0.01
    short = np.zeros(1001, np.float32)
    found = resampled(short, 44_100, RATE)
    assert len(found) == Recording("a", wav(short, 44_100)).n_samples(RATE) == 364


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, samples in enumerate(tiny_audio.samples(6)):
        path = tmp_path / "sounds" / ("tone" if number % 2 else "hum") / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav(samples, RATE))
    (tmp_path / "sounds" / "readme.txt").write_text("sounds")
    return tmp_path / "sounds"


def corpus(tmp_path: Path, audio: dict[str, object], **given: object) -> pd.DataFrame:
    """The table of a corpus, as the workflow makes it."""
    settings = parse(AudioCorpus, {"audio": audio, **given})
    make_corpus(tmp_path / "c.parquet", "c", settings)
    return prompts.read_corpus(tmp_path / "c.parquet")


def test_a_folder_with_labels(folder: Path, tmp_path: Path) -> None:
    found = corpus(tmp_path, {"folder": str(folder)})
    assert (found["label"] == found["prompt_id"].str.split("/").str[0]).all()
    assert (found["rate"] == RATE).all()
    lengths = {row.prompt_id: row.samples for row in found.itertuples()}
    assert lengths["hum/0.wav"] == len(tiny_audio.samples(1)[0])
    table = tmp_path / "labels.csv"
    table.write_text("file,label\nhum/0.wav,a\ntone/1.wav,b\nhum/2.wav,\n")
    names = {"hum/0.wav": "a", "tone/1.wav": "b", "hum/2.wav": ""}
    # The same table as `datasets` writes it: numbers of named classes, -1 for none.
    classes = datasets.ClassLabel(names=["a", "b"])
    features = datasets.Features({"file": datasets.Value("string"), "label": classes})
    numbers = {"file": [*names], "label": [0, 1, -1]}
    datasets.Dataset.from_dict(numbers, features).to_parquet(tmp_path / "labels.parquet")
    for labels in (table, tmp_path / "labels.parquet"):
        found = corpus(tmp_path, {"folder": str(folder), "labels": str(labels)})
        assert dict(zip(found["prompt_id"], found["label"].fillna(""), strict=True)) == names
    table.write_text("file,label\nhum/9.wav,a\n")
    with refused("unknown_name"):
        corpus(tmp_path, {"folder": str(folder), "labels": str(table)})
    (folder / "hum" / "4.wav").write_bytes(b"RIFF")
    with refused("unreadable"):
        corpus(tmp_path, {"folder": str(folder)})


def test_keys_follow_recordings_and_labels(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("file,label\nhum/0.wav,a\n")
    entry = {"audio": {"folder": str(folder), "labels": str(table)}}
    study = {"metrics": {"kind": "metrics_by_depth"}}
    given = {"models": {"m": {"source": {"hub": "o/m"}}}, "corpora": {"c": entry}}

    def key() -> str:
        return Plan(Config.of({**given, "studies": study})).key("corpus", corpus="c")

    before = key()
    table.write_text("file,label\nhum/0.wav,b\n")
    changed = key()
    (folder / "hum" / "0.wav").write_bytes(wav(TONE, RATE))
    assert len({before, changed, key()}) == 3


def of_hub(folder: Path, n: int, *splits: str) -> str:
    """A data set of recordings in a local folder."""
    folder.mkdir()
    for split in splits:
        pq.write_table(tiny_audio.tones(n, seed=len(split)), folder / f"{split}.parquet")
    return str(folder)


VIEWS = AudioViews(n=3)


def drawn(name: str = "a", **settings: object) -> list[str]:
    table = pd.DataFrame({"prompt_id": [name], "sha256": ["0"]})
    return audio.draw_views(table, VIEWS.model_copy(update=settings))["drawn"].to_list()


def test_views_are_seeded_and_differ() -> None:
    records = drawn()
    assert records == drawn(), "the same each time"
    assert records[:2] == drawn(n=2), "more views keep the earlier ones"
    assert len({*records, *drawn(name="b")}) == 6
    made = [audio.apply_view(TONE, record) for record in records]
    assert {(view.shape, view.dtype) for view in made} == {(TONE.shape, TONE.dtype)}
    np.testing.assert_array_equal(made[0], audio.apply_view(TONE, records[0]))
    assert np.abs(made[0] - made[1]).max() > 0.01


def test_views_do_what_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "GAIN", 0.0)
    shifts = [json.loads(one)["shift"] for one in drawn(snr=None, n=200)]
    assert -0.1 <= min(shifts) < -0.09 and 0.09 < max(shifts) <= 0.1
    shifted = audio.apply_view(TONE, drawn(snr=None, n=200)[0])
    np.testing.assert_array_equal(shifted, np.roll(TONE, round(shifts[0] * len(TONE))))
    monkeypatch.setattr(audio, "SHIFT", 0.0)
    monkeypatch.setattr(audio, "GAIN", 6.0)
    louder = np.array([audio.apply_view(TONE, one)[100] for one in drawn(snr=None, n=200)])
    decibels = 20 * np.log10(louder / TONE[100])
    assert -6 <= decibels.min() < -5.5 and 5.5 < decibels.max() <= 6
    monkeypatch.setattr(audio, "GAIN", 0.0)
    for record in drawn(snr=(5, 15), n=5)[:5]:
        noise = audio.apply_view(TONE, record) - TONE
        found = 10 * np.log10(np.mean(TONE**2) / np.mean(noise**2))
        assert found == pytest.approx(json.loads(record)["snr"], abs=0.3)
        assert 5 <= json.loads(record)["snr"] <= 15
    silent = audio.apply_view(TONE * 0, drawn()[0])
    assert not silent.any()


def test_files_there_and_back(folder: Path, tmp_path: Path) -> None:
    table = corpus(tmp_path, {"folder": str(folder)})
    path, views = tmp_path / "c.parquet", tmp_path / "c.views.parquet"
    make_views(views, path, VIEWS)
    found = prompts.read(path, views)
    assert [one.sha256 for one in found.views[0]] == table["sha256"].to_list()
    first = found.views[0][0].samples(RATE)
    expected = audio.apply_view(first, found.views[2][0].drawn)
    np.testing.assert_array_equal(found.views[2][0].samples(RATE), expected)


def test_python_takes_recordings(tmp_path: Path) -> None:
    hub = of_hub(tmp_path / "data", 40, "train")
    data = datasets.load_dataset(hub, split="train")
    model = str(tiny_audio.save("whisper", tmp_path / "m"))
    metrics = ["prompt_entropy", "curvature"]
    table = lw.analyse(model, data, column="audio", metrics=metrics)
    assert table["layer"].nunique() == 4 and table["value"].notna().all()
    held = data.cast_column("audio", datasets.Audio(decode=False))["audio"]
    arrays = [{"array": decode(one["bytes"], "a")[0], "sampling_rate": RATE} for one in held]
    pd.testing.assert_frame_equal(table, lw.analyse(model, arrays, metrics=metrics))
    path = tmp_path / "first.wav"
    path.write_bytes(held[0]["bytes"])
    np.testing.assert_array_equal(lw.embed(model, [path]), lw.embed(model, arrays[:1]))
    assert lw.choose(model, arrays, list(data["label"])).table["score"].max() == 1
    with refused("wrong_type"):
        lw.embed(model, [TONE])


def test_the_shell_reads_folders(tmp_path: Path) -> None:
    sounds = tmp_path / "sounds"
    for number in range(40):
        label, pitch = ("high", 2000) if number % 2 else ("low", 200)
        time = np.arange(RATE // 4 if number else 6 * RATE) / RATE  # the first has 299 frames
        noise = np.random.default_rng(number).normal(0, 0.1, len(time))
        path = sounds / label / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav(np.float32(np.sin(2 * np.pi * pitch * time) + noise), RATE))
    model = str(tiny_audio.save("wav2vec2", tmp_path / "m"))

    def run(command: str, *given: object) -> str:
        result = CliRunner().invoke(app, [command, model, *map(str, given), "--threads", "1"])
        if result.exception is not None:
            raise result.exception
        return result.output

    table = tmp_path / "t.csv"
    run("analyse", sounds, "--metric", "curvature", "--csv", table)
    expected = lw.analyse(model, sorted(sounds.rglob("*.wav")), metrics="curvature")
    np.testing.assert_allclose(pd.read_csv(table)["value"], expected["value"], rtol=1e-6)
    said = run("choose", "--labels", sounds, "--within", "100", "--sample", "30")
    assert "30 of 40 labelled files" in said
    assert "layerwise export" not in said
    with refused("unsupported"):
        run("export", tmp_path / "cut", "--layer", "1")
    with refused("conflict"):
        run("choose", "--labels", sounds, "--label", "speaker")
    (sounds / "low" / "0.wav").rename(sounds / "0.wav")
    with refused("too_few"):
        run("choose", "--labels", sounds)
    picture = sounds / "a.png"
    picture.write_bytes(png(np.zeros((4, 4), np.uint8)))
    assert isinstance(prompts_of([picture])[0], Picture)
    with refused("wrong_type"):
        run("analyse", sounds)


def test_a_task_of_mteb(tmp_path: Path) -> None:
    pytest.importorskip("mteb")
    task = MtebTask("FSDD", of_hub(tmp_path / "fsdd", 40, "train", "test"))
    loaded = load("m", tiny.entry(tiny_audio.save("whisper", tmp_path / "m")), "main")
    setup = set_up(loaded, ExtractSettings(), ScoringSettings())
    taken: list[TaskScores] = []
    score_tasks(setup, {"FSDD": task}, taken.append)
    values = [taken[0].scores[layer, 0][0].main_score for layer in range(4)]
    assert max(values) > 0.9


def test_config_tells_audio_from_images() -> None:
    study = {"studies": {"power_law": {"kind": "power_law"}}}
    config = Config.of({**study, "corpora": {"c": {"audio": {"folder": "sounds"}}}})
    assert config.corpora["c"].views.snr == (10, 30)
    with refused("unknown_key"):
        Config.of({**study, "corpora": {"c": {"audio": {"folder": "a"}, "views": {"crop": 1}}}})
    with refused("invalid"):
        views = {"snr": [20, 10]}
        Config.of({**study, "corpora": {"c": {"audio": {"folder": "a"}, "views": views}}})
    with refused("one_of"):
        Config.of({**study, "corpora": {"c": {"audio": {"package": "digits"}}}})
