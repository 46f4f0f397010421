"""Files that appear whole or not at all."""

import pytest

from stellaris.runtime.files import atomic_write


@pytest.mark.parametrize("old", [None, "old\n"])
def test_an_interrupted_write_leaves_nothing(tmp_path, old):
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_text(old)

    def interrupted():
        with atomic_write(path) as file:
            file.write("half")
            file.flush()
            assert (path.read_text() if path.exists() else None) == old  # not seen while it is written, either
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == ({} if old is None else {"file.txt": old})


def test_a_whole_write(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    for text in ("one\n", "two\r\nand more\n"):
        with atomic_write(str(path)) as file:
            file.write(text)
        assert path.read_bytes() == text.encode()
        assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_writers_at_once_do_not_meet(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path) as slow:
        slow.write("slow, ")
        slow.flush()
        with atomic_write(path) as quick:
            quick.write("quick")
        assert path.read_text() == "quick"
        slow.write("and whole")
    assert path.read_text() == "slow, and whole"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]
