"""Start SkyRL's server with this interpreter: `serve` is its front, `engine` the process behind it that computes.

As published it wants Python 3.12 and `uv`; what differs here is how it is started, not what it computes.
"""

import os
import signal
import sys
import threading
import typing
from collections.abc import Callable

ENGINE = [sys.executable, "-m", "tests.skyrl.launcher", "engine"]


def serve(options: list[str]) -> None:
    """Serve on a free port of this machine alone, and say which."""
    import argparse
    import socket

    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    api.app.state.engine_config = EngineConfig.model_validate(vars(parser.parse_args(options)))
    api._build_uv_run_cmd_engine = lambda _, config: [*ENGINE, *config_to_argv(config)]
    # Bound here and handed on: a port that is only looked up can be taken by another before it is used.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"Listening on port {listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(api.app, log_level="warning", timeout_graceful_shutdown=5)
        uvicorn.Server(config).run(sockets=[listener])


def engine(options: list[str]) -> None:
    """Compute what the front has put into its database."""
    from skyrl.tinker.engine import main

    sys.argv[1:] = options
    main()


def _end_with_the_starter() -> None:
    """Leave when standard input ends: a pipe that whoever started us holds, and that closes however they end."""

    def watch() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(role: str, *options: str) -> None:
    import typing_extensions

    # Below Python 3.12 pydantic refuses the standard library's.
    typing.TypedDict = typing_extensions.TypedDict
    roles: dict[str, Callable[[list[str]], None]] = {"serve": serve, "engine": engine}
    _end_with_the_starter()
    roles[role](list(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
