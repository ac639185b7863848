"""The names of surrogates: by how a server reduces, and the old ones by server."""

import warnings

import pytest

from penalties.training import forward_backward_custom
from penalties.training.surrogates import REDUCTIONS, surrogate_of
from tests.training.clients import RemoteClient, batch
from tests.training.custom_loss.cases import assert_trained_alike, squared


def test_the_service_sums() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert surrogate_of("tinker") is REDUCTIONS["sums"]


def test_skyrl_stands_for_averages_with_a_warning_where_it_was_written() -> None:
    client = RemoteClient(averages=True)
    data = batch(4, 2, 3)
    with pytest.warns(FutureWarning, match=r"only SkyRL.s JAX backend does.*probe\(client\)") as warned:
        forward_backward_custom(client, data, squared, server="skyrl").result(60)
    assert warned[0].filename == __file__
    assert_trained_alike(client, data, lambda logprobs: squared(data, logprobs)[0])


def test_the_wrong_name_is_off_by_length_times_count() -> None:
    """What SkyRL's torch backends did with "skyrl": they add up."""
    client, data = RemoteClient(), batch(4, 5)
    forward_backward_custom(client, data[:1], lambda d, logprobs: logprobs[0].sum(), server="averages").result(60)
    (sent,) = client.sent[-1]
    assert sent.loss_fn_inputs["advantages"].tolist() == [-4.0] * 4
    forward_backward_custom(client, data, lambda d, logprobs: logprobs[1].sum(), server="averages").result(60)
    assert client.sent[-1][1].loss_fn_inputs["advantages"].tolist() == [-10.0] * 5
