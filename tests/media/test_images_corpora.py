"""Image corpora: sources, odd images, views, the tables."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.refused import refused
from PIL import Image

from layerwise.config import Config
from layerwise.corpora import prompts
from layerwise.corpora.prompts import make_corpus, make_views
from layerwise.io.files import sha256_bytes
from layerwise.section import parse
from layerwise.tasks import mteb_task
from media import images
from media.images import Picture, apply_view, decode, draw_views, png
from media.settings import HubImages, ImageCorpus, ImageViews, PackageImages
from media.sources import UnreadableError, classes_of, open_media

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def shown(data: bytes) -> np.ndarray:
    return np.asarray(decode(data, "odd"))


def test_grey_has_three_equal_channels() -> None:
    grey = COLOURS[..., 0]
    for data in (png(grey), saved(Image.fromarray(grey > 99))):
        found = shown(data)
        assert found.shape == (6, 9, 3)
        assert (found == found[..., :1]).all()
    np.testing.assert_array_equal(shown(png(grey))[..., 0], grey)


def test_transparent_parts_are_shown_on_white() -> None:
    alpha = np.zeros((6, 9, 1), np.uint8)
    alpha[:3] = 255
    found = shown(png(np.concatenate([COLOURS, alpha], axis=2)))
    np.testing.assert_array_equal(found[:3], COLOURS[:3])
    assert (found[3:] == 255).all()
    grey = Image.merge("LA", [Image.new("L", (4, 4), 10), Image.new("L", (4, 4), 0)])
    assert (shown(saved(grey)) == 255).all()
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([200, 0, 0, 0, 200, 0])
    assert (shown(saved(palette, transparency=0)) == 255).all()
    assert (shown(saved(palette)) == [200, 0, 0]).all()


def test_cmyk_is_converted() -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    found = shown(saved(red, "TIFF"))
    assert (found == [255, 0, 0]).all()
    assert np.abs(shown(saved(red, "JPEG", quality=95)).astype(int) - [255, 0, 0]).max() < 12


def test_sixteen_bits_are_scaled() -> None:
    deep = np.array([[0, 257, 257 * 128, 65535]], np.uint16)
    for form in ("PNG", "TIFF"):
        found = shown(saved(Image.fromarray(deep), form))
        np.testing.assert_array_equal(found[0, :, 0], [0, 1, 128, 255])
    pgm = b"P5 4 1 65535\n" + deep.astype(">u2").tobytes()
    np.testing.assert_array_equal(shown(pgm)[0, :, 0], [0, 1, 128, 255])


def test_values_without_a_white_are_refused() -> None:
    for mode in ("I", "F"):
        with pytest.raises(UnreadableError):
            shown(saved(Image.new(mode, (4, 4), 3), "TIFF"))


def test_orientation_is_applied() -> None:
    image = Image.fromarray(COLOURS)
    exif = image.getexif()
    exif[0x0112] = 6  # a camera held upright: to be turned clockwise
    found = shown(saved(image, "PNG", exif=exif))
    np.testing.assert_array_equal(found, np.rot90(COLOURS, -1))


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    found = shown(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert (found == [255, 0, 0]).all()


@pytest.mark.parametrize(
    "data",
    [b"", b"no image", saved(Image.fromarray(COLOURS), "JPEG")[:200], png(COLOURS)[:60]],
    ids=["empty", "text", "jpeg cut", "png cut"],
)
def test_damaged_images_are_named(data: bytes) -> None:
    with pytest.raises(UnreadableError):
        shown(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        path = tmp_path / "pets" / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(RNG.integers(0, 256, (8, 10, 3), dtype=np.uint8)))
    (tmp_path / "pets" / "readme.txt").write_text("pets")
    return tmp_path / "pets"


def corpus(tmp_path: Path, images: dict[str, object], **given: object) -> pd.DataFrame:
    """The table of a corpus, as the workflow makes it."""
    settings = parse(ImageCorpus, {"images": images, **given})
    make_corpus(tmp_path / "c.parquet", "c", settings)
    return prompts.read_corpus(tmp_path / "c.parquet")


def test_one_folder_a_class(folder: Path, tmp_path: Path) -> None:
    images = {"folder": str(folder)}
    four, two = (corpus(tmp_path, images, sample={"n": n, "seed": 3}) for n in (4, 2))
    pd.testing.assert_frame_equal(four[:2], two)
    assert (four["label"] == four["prompt_id"].str.split("/").str[0]).all()
    assert (four["width"] == 10).all() and (four["height"] == 8).all()


def test_damaged_images_are_dropped_or_stop_the_run(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "cat" / "1.png").write_bytes(b"GIF89a, but no more")
    (folder / "dog" / "0.png").write_bytes((folder / "dog" / "2.png").read_bytes())
    with refused("unreadable"):
        corpus(tmp_path, {"folder": str(folder)})
    kept = corpus(tmp_path, {"folder": str(folder)}, damaged="drop")
    counts = json.loads(pq.read_metadata(tmp_path / "c.parquet").metadata[b"counts"])
    assert counts == {"read": 6, "damaged": 1, "duplicate": 1, "kept": 4, "not_sampled": 0}
    assert len(kept) == 4
    assert "cat/1.png" in caplog.text


def test_a_folder_without_images(tmp_path: Path) -> None:
    with refused("too_few"):
        corpus(tmp_path, {"folder": str(tmp_path)})
    with refused("missing_file"):
        corpus(tmp_path, {"folder": str(tmp_path / "none")})


def test_a_data_set_of_the_hub(tmp_path: Path) -> None:
    import datasets

    images = [Image.fromarray(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(4)]
    names = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features(
        {"image": datasets.Image(), "mask": datasets.Image(), "label": names}
    )
    damaged = [{"bytes": b"none", "path": None}] * 4  # a column that nobody asks for
    data = datasets.Dataset.from_dict(
        {"image": images, "mask": damaged, "label": [0, 1, 1, 0]}, features=features
    )
    data.to_parquet(tmp_path / "train.parquet")
    source = open_media(ImageCorpus(images=HubImages(hub=str(tmp_path), label="label")), Picture)
    assert source.labels == ["cat", "dog", "dog", "cat"]
    found = np.asarray(decode(source.read(2), "2"))
    np.testing.assert_array_equal(found, np.asarray(images[2]))
    with refused("unknown_name"):
        open_media(ImageCorpus(images=HubImages(hub=str(tmp_path), column="picture")), Picture)
    with refused("wrong_type"):
        open_media(ImageCorpus(images=HubImages(hub=str(tmp_path), column="label")), Picture)


VIEWS = ImageViews(n=3, size=32)
PHOTO = png(RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8))


def drawn(name: str = "a", **settings: object) -> list[str]:
    image = {"prompt_id": [name], "sha256": [sha256_bytes(PHOTO)], "width": [60], "height": [40]}
    views = draw_views(pd.DataFrame(image), VIEWS.model_copy(update=settings))
    return views["drawn"].to_list()


def view(record: str) -> np.ndarray:
    return np.asarray(apply_view(decode(PHOTO, "a"), record))


def test_views_are_seeded_and_differ() -> None:
    records = drawn()
    assert records == drawn(), "the same each time"
    assert records[:2] == drawn(n=2), "more views keep the earlier ones"
    assert len({*records, *drawn(name="b")}) == 6
    made = [view(record) for record in records]
    assert {m.shape for m in made} == {(32, 32, 3)}
    np.testing.assert_array_equal(made[0], view(records[0]))
    assert np.abs(made[0].astype(int) - made[1]).mean() > 1
    assert set(json.loads(records[0])["steps"]) == {"crop", "flip", "jitter", "grey", "blur"}


def test_views_do_what_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JITTERED", "GREY", "BLURRED"):
        monkeypatch.setattr(images, name, 0.0)
    plain = view(drawn(flip=0.0, n=1)[0])
    (cropped,) = drawn(flip=0.0, n=1)
    corners = np.array(json.loads(cropped)["steps"]["crop"]["src"][0], int)
    (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0) + 1
    part = decode(PHOTO, "a").crop((left, top, right, bottom))
    np.testing.assert_array_equal(
        view(cropped), np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR))
    )
    boxes = [json.loads(record)["steps"]["crop"]["src"][0] for record in drawn(n=40)]
    assert (np.max(boxes, axis=(0, 1)) < (60, 40)).all(), "all within the image, width x height"
    assert np.max(boxes, axis=(0, 1))[0] > 40
    flipped = view(drawn(flip=1.0, n=1)[0])
    np.testing.assert_array_equal(flipped, plain[:, ::-1])
    monkeypatch.setattr(images, "BLURRED", 1.0)
    blurred = view(drawn(flip=0.0, n=1)[0])
    monkeypatch.setattr(images, "GREY", 1.0)
    grey = view(drawn(flip=0.0, n=1)[0])
    assert (grey == grey[..., :1]).all()
    assert np.diff(blurred.astype(int), axis=0).std() <= np.diff(plain.astype(int), axis=0).std()


def test_drawing_leaves_all_generators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def seeded(_seed: int) -> None:
        raise AssertionError("a GPU was seeded")

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded)
    drawn()
    assert torch.equal(torch.rand(2), expected)


def test_classes_are_drawn_whole(tmp_path: Path) -> None:
    digits = open_media(ImageCorpus(images=PackageImages(package="digits")), Picture)
    three = classes_of(digits.labels, 3, 0)
    assert len(three) == 3
    assert classes_of(digits.labels, 2, 0) < three
    assert len(classes_of(digits.labels, None, 0)) == 10
    with refused("too_few"):
        classes_of(digits.labels, 11, 0)
    kept = corpus(tmp_path, {"package": "digits"}, classes=3)
    assert len(kept) == sum(label in three for label in digits.labels)


def test_no_row_reads_a_file_outside_its_data_set(tmp_path: Path) -> None:
    private, data = tmp_path / "private.png", tmp_path / "data"
    (data / "inside").mkdir(parents=True)
    private.write_bytes(png(COLOURS))
    (data / "inside" / "a.png").write_bytes(png(COLOURS[:3]))
    (data / "link.png").symlink_to(private)
    inside = data / "inside/a.png"
    paths = [str(private), "../private.png", "link.png", "inside/a.png", str(inside), None]
    rows = pa.array([{"bytes": None, "path": p} for p in paths], datasets.Image().pa_type)
    features = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
    table = pa.table({"image": rows}).replace_schema_metadata({"huggingface": features})
    pq.write_table(table, data / "train.parquet")
    source = open_media(ImageCorpus(images=HubImages(hub=str(data))), Picture)
    assert source.read(3) == source.read(4) == png(COLOURS[:3])
    rows_of_mteb = datasets.load_dataset(str(data), split="train")
    metadata = SimpleNamespace(name="task", dataset={"path": str(data)})
    for row in (0, 1, 2, 5):
        with pytest.raises(UnreadableError):
            source.read(row)
        loader = SimpleNamespace(dataset=rows_of_mteb.select([row]))
        with pytest.raises(UnreadableError):
            list(Picture.read_rows(loader.dataset, str(data), metadata.name))


def test_mtebs_images_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders: list[object] = []

    def read(rows: object, *_: object) -> list[Picture]:
        loaders.append(rows)
        return [Picture(name, name[:1].encode()) for name in ("a", "b", "a copy")]

    monkeypatch.setattr(Picture, "read_rows", read)
    recorder = mteb_task._Encoder()
    about = SimpleNamespace(modalities=["image"], dataset={"path": "p"}, name="task")
    noise = recorder.encode(SimpleNamespace(dataset="rows"), task_metadata=about)
    assert loaders == ["rows"] and noise.shape == (3, 2)
    assert [*recorder.media] == [name for _, name in recorder.keys] and len(recorder.media) == 2


def test_files_there_and_back(folder: Path, tmp_path: Path) -> None:
    table = corpus(tmp_path, {"folder": str(folder)})
    path, views = tmp_path / "c.parquet", tmp_path / "c.views.parquet"
    make_views(views, path, VIEWS)
    found = prompts.read(path, views)
    assert found.ids == table["prompt_id"].to_list()
    assert [p.sha256 for p in found.views[0]] == table["sha256"].to_list()
    records = draw_views(table, VIEWS)
    second = records[records["view"] == 2]["drawn"].to_list()
    assert [picture.drawn for picture in found.views[2]] == second
    assert found.views[2][0].pixels().size == (32, 32)
    corpus(tmp_path, {"folder": str(folder)}, sample={"n": 2})
    with refused("mismatch"):
        prompts.read(path, views)


STUDY = {"studies": {"power_law": {"kind": "power_law"}}}


def test_config_tells_images_from_texts() -> None:
    config = Config.of({**STUDY, "corpora": {"digits": {"images": {"package": "digits"}}}})
    assert config.corpora["digits"].views.n == 2
    with refused("one_of"):
        Config.of({**STUDY, "corpora": {"digits": {"package": "digits"}}})
    with refused("unknown_key"):
        bad = {"images": {"package": "digits"}, "filters": {"min_tokens": 3}}
        Config.of({**STUDY, "corpora": {"digits": bad}})
    with refused("unknown_value"):
        Config.of({**STUDY, "corpora": {"digits": {"images": {"package": "digit"}}}})
