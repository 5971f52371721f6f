"""Image corpora: sources, odd images, views, the tables."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerwise.config import Config
from layerwise.config.corpora import Sample
from layerwise.config.images import FolderImages, HubImages, ImageViews, PackageImages
from layerwise.corpora import images_table, images_views, prompts
from layerwise.corpora.images import Picture, UnreadableError, decode
from layerwise.corpora.images_sources import SUFFIXES, choose, of_classes, open_images, png
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_bytes
from layerwise.workflow import content

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def shown(data: bytes) -> np.ndarray:
    return np.asarray(decode(data, "odd"))


def test_colours_stay() -> None:
    np.testing.assert_array_equal(shown(png(COLOURS)), COLOURS)


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
        with pytest.raises(UnreadableError, match=rf"'odd' holds 32-bit values .*'{mode}'"):
            shown(saved(Image.new(mode, (4, 4), 3), "TIFF"))


def test_orientation_is_carried_out() -> None:
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
    with pytest.raises(UnreadableError, match=r"The image 'odd' cannot be read \(.+\)"):
        shown(data)


def test_a_huge_image_is_not_decoded() -> None:
    # A PNG that says 60,000 x 60,000 and holds nothing.
    data = bytearray(png(COLOURS))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(UnreadableError):
        decode(bytes(data), "odd", 1000)
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    # Over Pillow's own limit, which has no say.
    with pytest.raises(UnreadableError, match=r"more than max_pixels \(1,000,000,000\)"):
        decode(bytes(data), "odd", 10**9)
    with pytest.raises(UnreadableError, match=r"9 x 6 pixels, more than max_pixels \(50\)"):
        decode(png(COLOURS), "odd", 50)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        path = tmp_path / "pets" / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(RNG.integers(0, 256, (8, 10, 3), dtype=np.uint8)))
    (tmp_path / "pets" / "readme.txt").write_text("pets")
    return tmp_path / "pets"


def test_one_folder_a_class(folder: Path) -> None:
    source = open_images(FolderImages(folder=str(folder)))
    assert source.ids == sorted(source.ids)
    assert source.labels == [name.split("/")[0] for name in source.ids]
    chosen = choose(source, Sample(n=4, seed=3), "error", 10**6)
    fewer = choose(source, Sample(n=2, seed=3), "error", 10**6)
    assert chosen.pictures[:2] == fewer.pictures
    assert chosen.counts["kept"] == 4
    assert chosen.counts["not_sampled"] == 2
    assert {p.data for p in chosen.pictures} == {None}, "kept as references"


def test_damaged_images_are_dropped_or_stop_the_run(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "cat" / "1.png").write_bytes(b"GIF89a, but no more")
    (folder / "dog" / "0.png").write_bytes((folder / "dog" / "2.png").read_bytes())
    source = open_images(FolderImages(folder=str(folder)))
    with pytest.raises(LayerwiseError, match=r"'cat/1\.png' cannot be read"):
        choose(source, Sample(), "error", 10**6)
    chosen = choose(source, Sample(), "drop", 10**6)
    assert chosen.counts == {
        "read": 6, "damaged": 1, "duplicate": 1, "not_sampled": 0, "kept": 4,
    }  # fmt: skip
    assert "cat/1.png" in caplog.text
    with pytest.raises(LayerwiseError, match="No image is left"):
        choose(source, Sample(), "drop", 5)


def test_a_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(LayerwiseError, match="holds no image"):
        open_images(FolderImages(folder=str(tmp_path)))
    with pytest.raises(LayerwiseError, match="There is no folder"):
        open_images(FolderImages(folder=str(tmp_path / "none")))


def test_digits() -> None:
    source = open_images(PackageImages(package="digits"))
    assert len(source.ids) == 1797
    chosen = choose(source, Sample(n=50), "error", 10**6)
    assert chosen.sizes == [(8, 8)] * 50
    assert set(chosen.labels) <= set("0123456789")
    values = np.asarray(decode(chosen.pictures[0].content(), "digit"))
    assert set(np.unique(values)) <= {round(v * 255 / 16) for v in range(17)}


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
    source = open_images(HubImages(hub=str(tmp_path), label="label"))
    assert source.labels == ["cat", "dog", "dog", "cat"]
    found = np.asarray(source.fetch(2).pixels())
    np.testing.assert_array_equal(found, np.asarray(images[2]))
    with pytest.raises(LayerwiseError, match="no column 'picture'"):
        open_images(HubImages(hub=str(tmp_path), column="picture"))
    with pytest.raises(LayerwiseError, match=r"no column 'label'.*there are 'image'"):
        open_images(HubImages(hub=str(tmp_path), column="label"))


def test_a_listing_is_of_images_alone(folder: Path) -> None:
    known = content.listing(folder, SUFFIXES)
    assert len(known) == 6
    (folder / ".DS_Store").write_bytes(b"x")
    assert content.listing(folder, SUFFIXES) == known
    (folder / "cat" / "7.JPG").write_bytes(b"x")
    assert content.listing(folder, SUFFIXES) == {**known, "cat/7.JPG": 1}


VIEWS = ImageViews(n=3, size=32)
PHOTO = png(RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8))


def drawn(name: str = "a", **settings: object) -> list[str]:
    chosen = VIEWS.model_copy(update=settings)
    return images_views.draw(name, sha256_bytes(PHOTO), (60, 40), chosen)


def view(record: str) -> np.ndarray:
    return np.asarray(images_views.carry_out(decode(PHOTO, "a"), record))


def test_views_are_seeded_and_differ() -> None:
    records = drawn()
    assert records == drawn(), "the same each time"
    assert records[:2] == drawn(n=2), "more views keep the earlier ones"
    assert len({*records, *drawn(name="b"), *drawn(seed=1)}) == 9
    made = [view(record) for record in records]
    assert {m.shape for m in made} == {(32, 32, 3)}
    np.testing.assert_array_equal(made[0], view(records[0]))
    assert np.abs(made[0].astype(int) - made[1]).mean() > 1
    assert set(json.loads(records[0])["steps"]) == {"crop", "flip", "jitter", "grey", "blur"}


def test_views_do_what_they_are_asked() -> None:
    still = {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "grey": 0.0, "blur": 0.0, "n": 1}
    plain = view(drawn(**still)[0])
    resized = np.asarray(decode(PHOTO, "a").resize((32, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(plain, resized)
    (cropped,) = drawn(**{**still, "crop": 0.1})
    corners = np.array(json.loads(cropped)["steps"]["crop"]["src"][0], int)
    (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0) + 1
    part = decode(PHOTO, "a").crop((left, top, right, bottom))
    np.testing.assert_array_equal(
        view(cropped), np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR))
    )
    flipped = view(drawn(**{**still, "flip": 1.0})[0])
    np.testing.assert_array_equal(flipped, plain[:, ::-1])
    grey = view(drawn(**{**still, "grey": 1.0})[0])
    assert (grey == grey[..., :1]).all()
    blurred = view(drawn(**{**still, "blur": 1.0})[0])
    assert np.diff(blurred.astype(int), axis=0).std() <= np.diff(plain.astype(int), axis=0).std()


def test_drawing_leaves_the_global_generator_alone() -> None:
    import torch

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    drawn()
    assert torch.equal(torch.rand(2), expected)


def test_drawing_seeds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def seeded(_seed: int) -> None:
        raise AssertionError

    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded)
    assert len(images_views.draw("a", "b", (40, 30), VIEWS)) == VIEWS.n


def test_classes_are_drawn_whole() -> None:
    digits = open_images(PackageImages(package="digits"))
    three = of_classes(digits, 3, 0)
    assert len(set(three.labels)) == 3
    assert len(three.ids) == sum(label in set(three.labels) for label in digits.labels)
    assert [three.fetch(row).name for row in (0, 5)] == [three.ids[row] for row in (0, 5)]
    assert set(of_classes(digits, 2, 0).labels) < set(three.labels)
    assert of_classes(digits, None, 0) is digits
    with pytest.raises(LayerwiseError, match=r"classes: 11 came.*10 classes"):
        of_classes(digits, 11, 0)


def test_tables_there_and_back(folder: Path, tmp_path: Path) -> None:
    source = open_images(FolderImages(folder=str(folder)))
    chosen = choose(source, Sample(), "error", 10**6)
    corpus, views = tmp_path / "pets.parquet", tmp_path / "pets.views.parquet"
    images_table.write_images(corpus, "pets", chosen)
    records = [
        images_views.draw(p.name, p.sha256, size, VIEWS)
        for p, size in zip(chosen.pictures, chosen.sizes, strict=True)
    ]
    images_table.write_views(views, "pets", chosen.pictures, records)
    found = prompts.read(corpus, views)
    assert found.ids == [p.name for p in chosen.pictures]
    assert list(found.views[0]) == chosen.pictures
    assert [p.drawn for p in found.views[2]] == [own[1] for own in records]
    assert found.views[2][0].pixels().size == (32, 32)
    labels = images_table.read_labels(corpus)
    assert labels == dict(zip(found.ids, chosen.labels, strict=True))
    other = chosen.pictures[:2]
    images_table.write_views(views, "pets", other, records[:2])
    with pytest.raises(LayerwiseError, match="views of other images"):
        prompts.read(corpus, views)
    Path(str(chosen.pictures[0].path)).write_bytes(png(COLOURS))
    with pytest.raises(LayerwiseError, match="is not the one that the corpus was made of"):
        found.views[0][0].pixels()


def test_bytes_there_and_back(tmp_path: Path) -> None:
    source = open_images(PackageImages(package="digits"))
    chosen = choose(source, Sample(n=3), "error", 10**6)
    images_table.write_images(tmp_path / "d.parquet", "d", chosen)
    pictures, sizes, _ = images_table.read_images(tmp_path / "d.parquet")
    assert pictures == chosen.pictures
    assert sizes == chosen.sizes


STUDY = {"studies": {"power_law": {"kind": "power_law"}}}


def test_config_tells_images_from_texts() -> None:
    config = Config.of({**STUDY, "corpora": {"digits": {"images": {"package": "digits"}}}})
    assert config.corpora["digits"].views.n == 2
    with pytest.raises(LayerwiseError, match=r"one of the keys source, images"):
        Config.of({**STUDY, "corpora": {"digits": {"package": "digits"}}})
    with pytest.raises(LayerwiseError, match=r"corpora.digits: unknown key 'filters'"):
        bad = {"images": {"package": "digits"}, "filters": {"min_tokens": 3}}
        Config.of({**STUDY, "corpora": {"digits": bad}})
    with pytest.raises(LayerwiseError, match=r"images.package: \"digit\" came.*digits"):
        Config.of({**STUDY, "corpora": {"digits": {"images": {"package": "digit"}}}})


def test_a_picture_names_what_is_gone(tmp_path: Path) -> None:
    gone = Picture("p", None, str(tmp_path / "none.png"), "0")
    with pytest.raises(LayerwiseError, match=r"'p' cannot be read: .*none.png: No such file"):
        gone.pixels()
