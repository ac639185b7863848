import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penalties import files
from penalties.files import moved_aside, new_folder, open_plain, replaced, write_atomically


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


# Folders.


def test_a_folder_appears_as_a_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "above" / "folder") as part:
        (part / "inner").mkdir()
        (part / "inner" / "file").write_text("done")
        assert not (tmp_path / "above" / "folder").exists()
    assert (tmp_path / "above" / "folder" / "inner" / "file").read_text() == "done"
    assert [path.name for path in (tmp_path / "above").iterdir()] == ["folder"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()

    def interrupted() -> None:
        with new_folder(tmp_path / "folder", overwrite=overwrite) as part:
            (part / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "old"]


def test_a_folder_with_content_is_replaced_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with new_folder(tmp_path / "folder") as part:  # an empty folder gives way
        (part / "first").touch()
    with pytest.raises(OSError, match="folder"), new_folder(tmp_path / "folder") as part:
        (part / "second").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["first", "folder"]
    with new_folder(tmp_path / "folder", overwrite=True) as part:
        (part / "second").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "second"]


def test_the_old_folder_returns_if_the_new_one_cannot_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.suffix == ".part":
            raise OSError("busy")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="busy"), new_folder(tmp_path / "folder", overwrite=True) as part:
        (part / "new").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "old"]


def test_what_a_kill_left_is_found_and_then_removed(tmp_path: Path) -> None:
    aside = tmp_path / ".a[b].x1.old"
    aside.mkdir()
    (tmp_path / ".a[b].x2.part").mkdir()
    assert moved_aside(tmp_path / "a[b]") == aside
    with new_folder(tmp_path / "a[b]"):
        pass
    assert moved_aside(tmp_path / "a[b]") is None
    assert [path.name for path in tmp_path.iterdir()] == ["a[b]"]
