"""Faults in the program's own process: Python loads this module as it starts, and `PENALTIES_FAULT` says what to do.

`folder` is that of the run. Whatever the program does to the disk there is counted, from 1; at the `at`-th the process
is killed (`kill`), the folder is renamed (`vanish`), or it fails with `number`, as does everything after it (`error`).
`copy` copies the folder before each, which is what a kill would leave, and `clock` makes the time jump.
"""

import builtins
import datetime
import errno
import io
import json
import os
import shutil
import signal
import time

_PATHS = ("replace", "rename", "mkdir", "unlink", "rmdir")
_DESCRIPTORS = ("write", "fsync", "ftruncate")
_WRITING = os.O_CREAT | os.O_WRONLY | os.O_RDWR
_YEAR = 365 * 86400


class Fault:
    def __init__(self, kind, folder, at=0, number=errno.EIO, to=""):
        self.kind, self.folder, self.at, self.number, self.to = kind, os.path.abspath(folder), at, number, to
        self.count = 0
        self.busy = False

    def install(self):
        if self.kind == "clock":
            _jump()
            return
        for name in _PATHS:
            self.patch(os, name, lambda path, *rest, dir_fd=None, **more: self.inside(path, dir_fd))
        for name in _DESCRIPTORS:
            self.patch(os, name, lambda descriptor, *rest: self.inside(descriptor))
        self.patch(os, "open", lambda path, flags, *rest, dir_fd=None: flags & _WRITING and self.inside(path, dir_fd))
        for module in (io, builtins):
            self.patch(module, "open", lambda file, mode="r", *rest, **more: mode != "rb" and self.inside(file))

    def patch(self, module, name, concerns):
        original = getattr(module, name)

        def call(*arguments, **options):
            if not self.busy and concerns(*arguments, **options):
                self.busy = True
                try:
                    self.act(name)
                finally:
                    self.busy = False
            return original(*arguments, **options)

        setattr(module, name, call)

    def inside(self, file, dir_fd=None):
        if isinstance(file, int):
            path = os.readlink(f"/proc/self/fd/{file}")
        else:
            start = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            path = os.path.normpath(os.path.join(start, os.fsdecode(file)))
        return path == self.folder or path.startswith(self.folder + os.sep)

    def act(self, name):
        self.count += 1
        if self.kind == "copy":
            if os.path.isdir(self.folder):
                shutil.copytree(self.folder, os.path.join(self.to, f"{self.count:04d}"))
        elif self.count < self.at:
            return
        elif self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "vanish" and self.count == self.at:
            os.rename(self.folder, self.to)
        elif self.kind == "error" and not (self.number == errno.ENOSPC and name in ("unlink", "rmdir", "ftruncate")):
            raise OSError(self.number, os.strerror(self.number))


def _jump():
    """Let the time jump, a year forward and two back, each time that it is asked for."""
    jumps = iter(range(10**9))

    def jump():
        return _YEAR * (1 if next(jumps) % 2 else -2)

    true, true_ns = time.time, time.time_ns

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(true() + jump(), tz)

    time.time = lambda: true() + jump()
    time.time_ns = lambda: true_ns() + jump() * 10**9
    datetime.datetime = Jumping


if "PENALTIES_FAULT" in os.environ:
    Fault(**json.loads(os.environ["PENALTIES_FAULT"])).install()
