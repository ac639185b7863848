"""Keys, and where they are hidden."""

import json
import os

import pytest

from penalties.app import privacy
from penalties.app.privacy import hide, secret_in


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*os.environ, *privacy._ADDRESSES):
        if name in privacy._ADDRESSES or name.upper().endswith(privacy._LIKELY):
            monkeypatch.delenv(name, raising=False)


def test_spaces_around_a_key_are_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", " tml-0123\n")
    assert hide("the key tml-0123 is unknown") == "the key <TINKER_API_KEY> is unknown"


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_key_is_hidden_as_json_has_it(monkeypatch: pytest.MonkeyPatch, ascii_only: bool) -> None:
    key = 'tml-"\\ü\t-key'
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert hide(json.dumps({"message": key}, ensure_ascii=ascii_only)) == '{"message": "<WANDB_API_KEY>"}'


@pytest.mark.parametrize(
    "written", ["tml%2B0%2F1%3D%20x", "tml%2B0/1%3D%20x", "tml%2B0%2F1%3D+x", "tml+0/1=%20x", "tml+0/1=+x"]
)
def test_a_key_is_hidden_as_an_address_has_it(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "tml+0/1= x")
    assert hide(f"404: https://search.example/?q=1&key={written}&n=2").endswith("key=<SEARCH_API_KEY>&n=2")


def test_a_key_is_hidden_as_python_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "tml-'\"\\'-key")
    assert hide(repr({"key": "tml-'\"\\'-key"})) == "{'key': '<SEARCH_API_KEY>'}"


def test_a_key_that_is_not_utf8_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.fsdecode(b"tml-\xff-key")
    monkeypatch.setenv("SEARCH_API_KEY", key)
    assert hide(f"{key}, tml-%FF-key") == "<SEARCH_API_KEY>, <SEARCH_API_KEY>"


def test_a_key_within_another_leaves_nothing_of_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "a-secret-and-more")
    assert hide("a-secret-and-more, secret") == "<HF_TOKEN>, <TINKER_API_KEY>"


def test_a_short_text_is_not_taken_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "step")
    assert hide("step 5") == "step 5"


def test_the_keys_of_services_that_terms_call_are_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORER_API_KEY", "sk-0123456789")
    monkeypatch.setenv("DB_PASSWORD", "correct horse")
    assert hide("401 for sk-0123456789, correct horse") == "401 for <SCORER_API_KEY>, <DB_PASSWORD>"


@pytest.mark.parametrize("value", ["production", "1234567", "/run/secrets/token", "~/keys/one"])
def test_a_word_a_number_and_a_path_are_no_keys(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", value)
    assert hide(f"step {value}") == f"step {value}"


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
