"""The distributions that users install: the wheel is the library and nothing else, and the sdist builds the same."""

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build(folder: Path, target: str, source: Path) -> Path:
    """Builds a distribution of a source tree by the project's build backend, without the network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel; without RECORD, which lists the others' hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), "wheel", ROOT)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sdist"), "sdist", ROOT)


@pytest.mark.slow
def test_the_wheel_is_the_library(wheel: Path) -> None:
    """Every file of the package, the ones that are imported when used and the data among them; no other package."""
    files = {path for path in (ROOT / "stellaris").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    installed = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert installed == {path.relative_to(ROOT).as_posix() for path in files}
    for needed in ("py.typed", "__init__.pyi", "runtime/costs/prices.toml", "runtime/ray/platform.py", "lab/sweep.py"):
        assert f"stellaris/{needed}" in installed


@pytest.mark.slow
def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    """The name on the index, the licence, the extras, and the README."""
    files = contents(wheel)
    (about,) = (text.decode() for name, text in files.items() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(about)
    assert metadata["Name"] == "stellaris-rl"
    assert {"experiments", "lab", "ray", "replay"} <= {*metadata.get_all("Provides-Extra", ())}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_sdist_is_small_and_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """It has the library and its pages: no tests, no results, which are 13 MB."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert {path.name for path in source.iterdir()} == {
        *("stellaris", "docs", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"),
        *("PKG-INFO", ".gitignore"),
    }
    assert sdist.stat().st_size < 1_000_000
    assert contents(build(tmp_path / "again", "wheel", source)) == contents(wheel)
