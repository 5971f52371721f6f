"""The kernels for spectra on a GPU, run on the CPU: a thread of C++ for each of CUDA's."""

import shutil
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import layerwise.activations
from layerwise.activations.eigen import WARPS, block_of

KERNELS = Path(layerwise.activations.__file__).parent / "symmetric.cu"
HERE = Path(__file__).parent / "cuda"
SHARED = "extern __shared__ double shared[];"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here")
    folder = tmp_path_factory.mktemp("cuda")
    text = KERNELS.read_text()
    assert text.count(SHARED) == 2
    text = text.replace(SHARED, "double* shared = ::shared.data();")
    (folder / "kernels.inc").write_text(text)
    subprocess.run(
        [
            "g++",
            "-std=c++20",
            "-O1",
            "-pthread",
            f"-I{folder}",
            str(HERE / "on_cpu.cpp"),
            "-o",
            str(folder / "run"),
        ],
        check=True,
    )
    return folder / "run"


def eigenvalues(
    program: Path, matrices: np.ndarray, in_shared: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Of the matrices, and of these without their first row and column."""
    count, size, _ = matrices.shape
    head = np.array([count, size, 64, in_shared], np.int32).tobytes()
    done = subprocess.run(
        [program], input=head + matrices.tobytes(), capture_output=True, check=True
    )
    values = np.frombuffer(done.stdout)
    whole, smaller = np.split(values, [count * size])
    return whole.reshape(count, size), smaller.reshape(count, size - 1)


@pytest.mark.parametrize(
    ("size", "in_shared"), [*product((1, 2, 3, 33), (False, True)), (70, True)]
)
def test_eigenvalues_of_gram_matrices(program: Path, size: int, in_shared: bool) -> None:
    """As LAPACK has them, also where one token outweighs the rest and where pads are zero."""
    states = np.random.default_rng(size).normal(size=(2, size, 2 * size))
    states[:, 0] *= 1000
    states[1, size // 2 + 1 :] = 0
    grams = states @ states.transpose(0, 2, 1)
    for first, found in enumerate(eigenvalues(program, grams, in_shared)):
        expected = np.linalg.eigvalsh(grams[:, first:, first:])
        assert np.abs(found - expected).max(initial=0) <= 1e-14 * expected.max(initial=0)


def test_matrices_that_are_diagonal_indefinite_or_zero(program: Path) -> None:
    diagonal = np.diag([3.0, -1.0, 2.0, 0.0])
    off = np.zeros((4, 4))
    off[0, 3] = off[3, 0] = 5.0
    whole, smaller = eigenvalues(program, np.stack([diagonal, off, np.zeros((4, 4))]), True)
    expected = [[-1, 0, 2, 3], [-5, 0, 0, 5], [0, 0, 0, 0]]
    np.testing.assert_allclose(whole, expected, atol=1e-14)
    np.testing.assert_allclose(smaller, [[-1, 0, 2], [0, 0, 0], [0, 0, 0]], atol=1e-14)


@pytest.mark.parametrize("room", [48 * 1024, 64 * 1024, 99 * 1024, 163 * 1024, 227 * 1024])
def test_what_a_block_shares_fits_on_any_card(room: int) -> None:
    """From 48 KiB up to an H100's 227, whatever the number of tokens."""
    for rank in (1, 2, 50, 160, 161, 400, 512, 1024, 2048, 4096, 20_000):
        block = block_of(rank, room)
        if block is None:
            assert 5 * rank * 8 > room
            continue
        assert 1 <= block.warps <= WARPS
        matrix = rank * rank if block.in_shared else 0
        assert (block.warps + 4) * rank * 8 + matrix * 8 == block.shared_bytes <= room
    assert block_of(160, 227 * 1024).in_shared  # type: ignore[union-attr]
