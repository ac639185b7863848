"""Starting a run, or resuming one: the model, the data and the sinks, opened for the loop and closed after it."""

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import NonFiniteError, TermError, said
from ..problems import counted
from ..processes import count, launched
from ..runs import checkpoints
from ..runs.checkpoints import Checkpoint
from ..runs.differences import differences
from ..runs.disk import RunError
from ..runs.environment import write_environment
from ..runs.references import References
from ..runs.run import Run
from .best import Best
from .clients import connect
from .execution import executing
from .loop import Interrupted, TermFailed, Training
from .progress import SILENT, Progress
from .sinks import attached

if TYPE_CHECKING:
    from ..config import Config
    from .notes import Notes

__all__ = ["check_config", "train"]


def train(config: "Config", folder: str | Path, *, resume: bool = False, progress: Progress = SILENT) -> Run:
    """Train the run of a folder to its end; returns it, closed.

    With `resume` it continues from its last checkpoint, or starts if it never did. Ctrl-C finishes the step, saves a
    checkpoint and raises `Interrupted`; a second one raises it at once.
    """
    there = Run(folder)
    # A run that never began may have another config.
    same = resume and there.exists() and not differences(_completed(there, there.config()), config.to_dict())
    resumed = resume and there.exists() and (same or there.begun())
    with Run.open(folder) if resumed else Run.create(folder, config) as run, contextlib.ExitStack() as ending:
        checkpoint = checkpoints.latest(run)
        left = _begin(run, config, checkpoint)
        progress.begin(run.folder, config.train.steps, 0 if checkpoint is None else checkpoint.step)
        ending.callback(progress.end)
        if not left:
            progress.say("the run is already finished")
            return run
        # The folder alone may have been made by a command that trains many runs.
        begun = checkpoint is not None or run.metrics.exists()
        run.begin_log()
        with _opened(run, config, checkpoint, progress) as training:
            done = 0 if checkpoint is None else checkpoint.step
            write_environment(run.folder, done, training.stream.fingerprints)
            training.begin(checkpoint, resumed=resumed and begun)
            training.run_all()
    return run


def _completed(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an existing run; options that are newer than the run have their defaults."""
    from ..config import Config, ConfigError

    try:
        return Config.from_dict(config).to_dict()
    except ConfigError as error:
        raise RunError(
            f"{run.folder}: its config is from another version of penalties: {error.problems[0]}", 2
        ) from error


def _notes(checkpoint: Checkpoint) -> "Notes":
    from .notes import Notes

    return Notes.of(checkpoint)


def check_config(run: Run, config: "Config", checkpoint: Checkpoint | None = None) -> None:
    """Raise if the config is not that of the run, and of its checkpoint: the file of the config may have changed."""
    before = run.config() if checkpoint is None else _notes(checkpoint).config
    changed = differences(_completed(run, before), config.to_dict())
    if changed:
        raise RunError(
            f"{run.folder}: its config changed: {'; '.join(changed[:3])}; resume it with the same config, or "
            "choose another folder with --run",
            2,
        )


def _begin(run: Run, config: "Config", checkpoint: Checkpoint | None) -> bool:
    """Check that the run can continue with the config; returns False if it is finished."""
    check_config(run, config)
    check_config(run, config, checkpoint)
    done = 0 if checkpoint is None else checkpoint.step
    run.clean()
    if done > config.train.steps:
        raise RunError(
            f"{run.folder}: {done} steps are done; train.steps is {config.train.steps}, expected at least that",
            2,
        )
    last = run.last() or {}
    ended = last["step"] if last.get("event") == "finished" and isinstance(last.get("step"), int) else 0
    # Checkpoints of a finished run may be removed; if the last one is damaged, the steps after the one before it are
    # done again.
    if checkpoint is None:
        return ended < config.train.steps and not last.get("early")
    # With more patience, a run that ended early goes on.
    early = ended == done and Best(config.train, _notes(checkpoint).known_best).exhausted
    return min(ended, done) < config.train.steps and not early


@contextlib.contextmanager
def _opened(run: Run, config: "Config", checkpoint: Checkpoint | None, progress: Progress) -> Generator[Training]:
    """The training, ready to begin; everything that it needs is closed at the end."""
    from ..data import Stream

    status, training, sinks = "errored", None, None
    before = 0 if checkpoint is None else checkpoint.step
    with contextlib.ExitStack() as ending:
        try:
            # First: a cluster that does not answer is found before a model is loaded.
            executor = ending.enter_context(executing(config))
            progress.say(f"loading the model in {count()} processes" if launched() else "loading the model")
            backend = connect(config, None if checkpoint is None else checkpoint.client)
            ending.callback(lambda: backend.close(status))
            if config.backend.server == "probe":
                progress.say(f"the server {backend.server}")
            stream = Stream(config, backend.tokenizer, backend.limit)
            known = {} if checkpoint is None else _notes(checkpoint).references
            references = References(config.providers(backend.another), run.references, known)

            early: list[str] = []

            def warn(message: str) -> None:
                if training is None:
                    # Later: the log may still be cut.
                    early.append(message)
                else:
                    training.tell("warning", message)

            sinks = ending.enter_context(attached(config.sinks, run.folder, config.to_dict(), step=before, report=warn))
            training = Training(config, run, backend, stream, executor, references, sinks, progress, early)
            yield training
            status = sinks.status = "success"
        except (Interrupted, KeyboardInterrupt) as error:
            status = "interrupted"
            if sinks is not None:
                sinks.status = status
            if isinstance(error, Interrupted):
                raise
            done, saved = (before, before) if training is None else (training.done, training.saved)
            _log_end(run, done, "interrupted", f"immediately, after {counted(done, 'step')}")
            last = f"the last checkpoint is after {counted(saved, 'step')}" if saved else "there is no checkpoint yet"
            raise Interrupted(f"stopped immediately after {counted(done, 'step')}; {last}") from None
        except Exception as error:
            _log_end(run, before if training is None else training.done, "failed", said(error))
            if training is not None and isinstance(error, TermError | NonFiniteError):
                raise TermFailed(error, training.done, evaluating=training.evaluating) from error
            raise


def _log_end(run: Run, step: int, event: str, message: str) -> None:
    """Log how the run ended; the log itself may be what failed."""
    with contextlib.suppress(RunError, OSError):
        run.event(step, event, message)
