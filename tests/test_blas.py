"""Which BLAS serves MLX on a CPU. Each case is a process of its own, because a library stays once
it is loaded.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvpeak.live.blas import REFERENCE, load_blas

SCRIPTS = Path(__file__).parents[1] / "workflow/scripts"
SAY = "from kvpeak.live.blas import load_blas; print(load_blas())"
MULTIPLY = """
import numpy as np
import mlx.core as mx
rng = np.random.default_rng(0)
a, b = rng.standard_normal((2, 37, 37))
mx.set_default_device(mx.cpu)
for dtype in (mx.float32, mx.float64, mx.complex64):
    i = 1j if dtype == mx.complex64 else 0
    left, right = (mx.array(x, mx.float64).astype(dtype) for x in (a, b))
    found = (left + i * left) @ (right - i * right).T
    np.testing.assert_allclose(np.array(found), (a + i * a) @ (b - i * b).T, rtol=1e-4, atol=1e-4)
"""
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or load_blas() is None, reason="MLX does not compute with a BLAS here"
)


@pytest.fixture
def process(tmp_path):
    """A function that runs Python code in a process with an empty cache and with more variables."""

    def run(code: str = SAY, **variables: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if name != "KVPEAK_BLAS"}
        environment |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(SCRIPTS)} | variables
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "kvpeak"


def compiled(cache: Path) -> list[Path]:
    return sorted(cache.glob("blas-*.so"))


def test_scipys_openblas_serves_and_nothing_is_said(process, cache):
    done = process()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OpenBLAS ") and " of SciPy " in done.stdout
    assert len(compiled(cache)) == 1
    assert [file.name for file in cache.iterdir()] == [compiled(cache)[0].name]
    assert cache.stat().st_mode & 0o777 == 0o700


def test_mlx_takes_its_products_from_it(process, cache):
    done = process(f"{SAY}\n{MULTIPLY}", LD_DEBUG="bindings")
    assert done.returncode == 0, done.stderr[-2000:]
    bound = [line for line in done.stderr.splitlines() if "symbol `cblas_" in line]
    of_mlx = [line for line in bound if "libmlx.so [0] to" in line]
    names = {line.split("`")[1].split("'")[0] for line in of_mlx}
    assert names == {"cblas_sgemm", "cblas_dgemm", "cblas_cgemm"}
    assert all(f"to {compiled(cache)[0]} [0]" in line for line in of_mlx)


def test_the_products_are_numpys(process):
    for choice in ("scipy", "reference"):
        done = process(f"{SAY}\n{MULTIPLY}", KVPEAK_BLAS=choice)
        assert done.returncode == 0, done.stderr[-2000:]


def test_it_is_compiled_once(process, cache):
    process()
    before = compiled(cache)[0].stat().st_mtime_ns
    done = process(CC="false")
    assert (done.stderr, " of SciPy " in done.stdout) == ("", True)
    assert compiled(cache)[0].stat().st_mtime_ns == before


def test_a_damaged_one_is_compiled_again(process, cache):
    process()
    compiled(cache)[0].write_bytes(b"")
    assert " of SciPy " in process().stdout
    assert compiled(cache)[0].stat().st_size


def test_the_compiled_one_serves_another_copy_of_scipy(process, cache, tmp_path):
    """An update of SciPy renames its library; nothing compiled may hold its path."""
    process()
    import scipy

    other = tmp_path / "site"
    (other / "scipy").mkdir(parents=True)
    (other / "scipy/__init__.py").touch()
    (other / "scipy.libs").mkdir()
    for file in Path(scipy.__file__).parents[1].joinpath("scipy.libs").iterdir():
        os.link(file, other / "scipy.libs" / file.name)
    [library] = (other / "scipy.libs").glob("libscipy_openblas-*.so")
    library.rename(library.with_name("libscipy_openblas-0.so"))
    shown = (
        f"{SAY}\nprint([l for l in open('/proc/self/maps') if 'scipy_openblas-0.so' in l] != [])"
    )
    done = process(shown, CC="false", PYTHONPATH=f"{other}:{SCRIPTS}")
    assert done.stdout.endswith("True\n") and " of SciPy " in done.stdout, done.stderr


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_the_reason_is_named(process, compiler):
    done = process(CC=compiler)
    if "OpenBLAS" in done.stdout:  # not SciPy's: that needs the compiler
        pytest.skip("the system has an OpenBLAS, which serves instead")
    assert done.stdout == f"{REFERENCE}\n"
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"kvpeak: {REFERENCE} serves") and compiler in done.stderr


def test_a_cache_that_others_can_write_to_is_not_used(process, cache):
    cache.mkdir()
    cache.chmod(0o777)
    assert " of SciPy " in process().stdout
    assert compiled(cache) == []


def test_a_home_that_cannot_be_written_to_is_no_obstacle(process):
    done = process(XDG_CACHE_HOME="/proc/nowhere")
    assert (done.stderr, " of SciPy " in done.stdout) == ("", True)


def test_the_reference_can_be_chosen(process):
    done = process(KVPEAK_BLAS="reference")
    assert (done.stdout, done.stderr) == (f"{REFERENCE}\n", "")


@pytest.fixture
def library() -> Path:
    """A BLAS under its plain names: the one in MLX's wheel."""
    import mlx.core

    return next(Path(mlx.core.__file__).parents[1].glob("mlx_cpu.libs/libblas-*.so*"))


def test_a_library_can_be_chosen_by_its_path(process, library):
    done = process(KVPEAK_BLAS=str(library))
    assert (done.stdout, done.stderr) == (f"BLAS in {library.name}\n", "")


def test_one_that_the_process_has_already_stays(process, library):
    done = process(LD_PRELOAD=str(library))
    assert (done.stdout, done.stderr) == (f"BLAS in {library.name}\n", "")


@pytest.mark.parametrize(
    ("choice", "name"),
    [("openblas", "libopenblas.so.0"), ("mkl", "libmkl_rt.so.2"), ("blis", "libblis.so.4")],
)
def test_one_of_the_system_can_be_chosen(process, library, tmp_path, choice, name):
    (tmp_path / name).symlink_to(library)
    done = process(KVPEAK_BLAS=choice, LD_LIBRARY_PATH=str(tmp_path))
    assert (done.stdout, done.stderr) == (f"BLAS in {name}\n", "")


def test_without_a_compiler_an_openblas_of_the_system_serves(process, library, tmp_path):
    (tmp_path / "libopenblasp.so.0").symlink_to(library)
    done = process(CC="false", LD_LIBRARY_PATH=str(tmp_path))
    assert (done.stdout, done.stderr) == ("BLAS in libopenblasp.so.0\n", "")


@pytest.mark.parametrize(
    ("choice", "cause"),
    [
        ("atlas", "unknown"),
        ("mkl", "this system has no libmkl_rt.so"),
        ("/nowhere/libblas.so", "/nowhere/libblas.so: cannot open shared object file"),
        (shutil.which("true") or "/bin/true", ""),
    ],
)
def test_a_choice_that_is_not_there_is_one_line(process, choice, cause):
    code = (
        "import sys\n"
        "from kvpeak.base.errors import UserError\n"
        "from kvpeak.live.blas import load_blas\n"
        "try:\n    print(load_blas())\n"
        "except UserError as error:\n    sys.exit(str(error))"
    )
    done = process(code, KVPEAK_BLAS=choice)
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"KVPEAK_BLAS={choice}: {cause}")
    assert "expected scipy, openblas, mkl, blis, reference, or the path of a library" in done.stderr
