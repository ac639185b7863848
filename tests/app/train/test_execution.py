"""Where the terms of a run are executed, as its config says."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted, TermFailed, train
from penalties.app.train.execution import executing

from ..stand_ins import events, killing, records, toy_config, trained

pytestmark = pytest.mark.usefixtures("backends")

SOMEWHERE = '[[term]]\nfn = "tests.app.terms:somewhere"\nruns = "{runs}"\n'
SLOW = '[[term]]\nfn = "tests.app.terms:slow"\nruns = "thread"\n'


def said(run: Any, what: str) -> set[int]:
    """What the term said at each step."""
    terms = [record["loss"]["regularizers"]["somewhere"] for record in records(run, "step")]
    return {int(term["custom"][what]) for term in terms}


class TestExecuting:
    def test_the_executor_is_made_as_the_table_says(self, tmp_path: Path) -> None:
        with executing(
            toy_config(tmp_path, more="[executor]\nworkers = 3\ntimeout = 7\nsequential = true")
        ) as executor:
            assert repr(executor) == "Executor(max_workers=3, timeout=7, sequential=True)"
        with executing(toy_config(tmp_path)) as executor:
            assert repr(executor) == f"Executor(max_workers={os.cpu_count()}, timeout=30, sequential=False)"
        with pytest.raises(RuntimeError, match="closed"):
            executor.run(toy_config(tmp_path).pipeline(), {})

    def test_terms_run_in_order_in_the_loop_where_it_is_sequential(self, tmp_path: Path) -> None:
        terms = SOMEWHERE.format(runs="thread")
        assert said(trained(tmp_path / "pool", terms=terms, steps=1), "main") == {0}
        run = trained(tmp_path / "loop", terms=terms, more="[executor]\nsequential = true", steps=1)
        assert said(run, "main") == {1}

    def test_its_timeout_is_that_of_terms_without_one(self, tmp_path: Path) -> None:
        table = "[executor]\ntimeout = 0.05"
        with pytest.raises(TermFailed, match=r"slow: took more than 0\.05 s"):
            trained(tmp_path / "late", terms=SLOW, more=table, steps=1)
        trained(tmp_path / "in time", terms=f"{SLOW}timeout = 20\n", more=table, steps=1)

    def test_it_may_change_when_a_run_is_resumed(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            trained(tmp_path, progress=killing(3))
        other = toy_config(tmp_path, more="[executor]\nworkers = 1\ntimeout = 5")
        run = train(other, tmp_path / "run", resume=True)
        assert events(run)[-1] == "finished"
        assert run.config()["executor"]["workers"] == 1


class TestRay:
    @pytest.fixture
    def ray(self) -> Iterator[Any]:
        library = pytest.importorskip("ray")
        yield library
        library.shutdown()

    def test_a_cluster_that_does_not_answer_is_an_error_at_once(self, tmp_path: Path, backends: list[Any]) -> None:
        pytest.importorskip("ray")
        table = '[executor]\nray_address = "127.0.0.1:1"'
        with pytest.raises(RunError, match=r"no server answers at 127\.0\.0\.1:1 .*executor\.ray_address") as raised:
            train(toy_config(tmp_path, terms=SOMEWHERE.format(runs="ray"), more=table), tmp_path / "run")
        assert raised.value.status == 2
        assert not backends, "no model was loaded"

    @pytest.mark.parametrize(
        ("runs", "more"), [("inline", ""), ("ray", "sequential = true"), ("ray", "enabled = false")]
    )
    def test_it_is_not_needed_where_no_term_runs_there(self, tmp_path: Path, runs: str, more: str) -> None:
        terms = SOMEWHERE.format(runs=runs) + (more if "enabled" in more else "")
        table = f'[executor]\nray_address = "127.0.0.1:1"\n{more if "sequential" in more else ""}'
        with executing(toy_config(tmp_path, terms=terms, more=table)):
            pass

    def test_an_address_that_ray_cannot_use_is_an_error(self, tmp_path: Path, ray: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"nothing://127.0.0.1:{listener.getsockname()[1]}"
            table = f'[executor]\nray_address = "{address}"'
            config = toy_config(tmp_path, terms=SOMEWHERE.format(runs="ray"), more=table)
            with (
                pytest.raises(RunError, match=f"could not connect to Ray at {address}: .*fix executor.ray_address"),
                executing(config),
            ):
                pass
        assert not ray.is_initialized()

    @pytest.mark.slow
    def test_terms_run_on_the_cluster_of_the_config(self, tmp_path: Path, ray: Any) -> None:
        from ray.cluster_utils import Cluster

        memory = {"object_store_memory": 100_000_000, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **memory})
        try:
            table = f'[executor]\nray_address = "{cluster.address}"\ntimeout = 120'
            run = trained(tmp_path, terms=SOMEWHERE.format(runs="ray"), more=table, steps=2)
            assert not ray.is_initialized()
            assert len(said(run, "process") - {os.getpid()}) == 1
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            with pytest.raises(RunError, match="connected to Ray already; remove executor.ray_address"):
                trained(tmp_path / "again", terms=SOMEWHERE.format(runs="ray"), more=table, steps=1)
        finally:
            ray.shutdown()
            cluster.shutdown()
