"""Keys, and where they are hidden."""

import json

import pytest

from penalties.app import privacy
from penalties.app.privacy import hide, secret_in


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*privacy._SECRET, *privacy._ADDRESSES):
        monkeypatch.delenv(name, raising=False)


def test_spaces_around_a_key_are_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", " tml-0123\n")
    assert hide("the key tml-0123 is unknown") == "the key <TINKER_API_KEY> is unknown"


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_key_is_hidden_as_json_has_it(monkeypatch: pytest.MonkeyPatch, ascii_only: bool) -> None:
    key = 'tml-"\\ü\t-key'
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert hide(json.dumps({"message": key}, ensure_ascii=ascii_only)) == '{"message": "<WANDB_API_KEY>"}'


def test_a_key_within_another_leaves_nothing_of_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "a-secret-and-more")
    assert hide("a-secret-and-more, secret") == "<HF_TOKEN>, <TINKER_API_KEY>"


def test_a_short_text_is_not_taken_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "step")
    assert hide("step 5") == "step 5"


class TestAddresses:
    @pytest.mark.parametrize("seen", ["postgresql://me:pass%4012@host/runs", "tried pass%4012", "tried pass@12"])
    @pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_URI", "TINKER_BASE_URL"])
    def test_the_password_of_one_is_hidden(self, monkeypatch: pytest.MonkeyPatch, variable: str, seen: str) -> None:
        monkeypatch.setenv(variable, "postgresql://me:pass%4012@host/runs")
        assert "pass" not in hide(seen)
        assert f"<{variable}>" in hide(seen)

    def test_one_that_is_a_mere_word_is_hidden_there_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:mlflow@host")
        assert hide("sinks.mlflow: http://mlflow:mlflow@host") == "sinks.mlflow: http://<MLFLOW_TRACKING_URI>@host"

    @pytest.mark.parametrize(
        "address", ["http://localhost:5000/a@b", "sqlite:////long/path@1.db", "https://mlflow@host"]
    )
    def test_one_without_a_password_hides_nothing(self, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert hide(address) == address


def test_a_secret_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-0123456789")
    assert secret_in("http://host/hf-0123456789") == "HF_TOKEN"
    assert secret_in("http://host") is None
