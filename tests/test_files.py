import os
from pathlib import Path

import pytest

from penalties.files import replaced, write_atomically


def test_bytes_and_text_are_written_exactly(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"\x00\r\n")
    write_atomically(tmp_path / "b", "é\n")
    assert (tmp_path / "a").read_bytes() == b"\x00\r\n"
    assert (tmp_path / "b").read_bytes() == "é\n".encode()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with replaced(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(folder, "a folder cannot be replaced by a file")
    assert list(tmp_path.iterdir()) == [folder]


def test_the_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", "")
    (tmp_path / "plain").touch()
    assert os.stat(tmp_path / "ours").st_mode == os.stat(tmp_path / "plain").st_mode
