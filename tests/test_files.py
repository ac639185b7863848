import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penalties import files
from penalties.files import open_plain, replaced, write_atomically


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


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "precious").read_text() == "old"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.symlink_to("elsewhere"), "a symbolic link"),
        (os.mkfifo, "a named pipe"),
        (os.mkdir, "a folder"),
    ],
)
def test_only_a_file_of_that_very_name_is_opened(tmp_path: Path, make: Any, what: str) -> None:
    make(tmp_path / "name")
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(OSError, match=f"it is {what}; expected a file"):
            open_plain(tmp_path / "name", flags)
    assert not (tmp_path / "elsewhere").exists()


def test_a_name_that_changes_its_meaning_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(files, "check_plain", lambda path: None)
    with pytest.raises(OSError, match="not a file any more"):
        open_plain(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open_plain(tmp_path / "link")


def test_writers_of_one_file_do_not_lose_what_the_others_write(tmp_path: Path) -> None:
    """As processes that write one report at the same time."""

    def write(letter: str) -> None:
        for _ in range(30):
            write_atomically(tmp_path / "file", letter * 10_000)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, "abc"))
    found = (tmp_path / "file").read_text()
    assert found == found[0] * 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
