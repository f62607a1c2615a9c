"""What a config says of the layers and the weights equals what transformers builds from it.

The oracle: the cache that transformers fills (seen through the engine's compatibility check) and
the parameters of its modules.
"""

import json

import pytest
from transformers import PreTrainedModel

from tests.support.architectures import NAMED, build
from viz_engine.engine import compatibility
from viz_engine.model import config


@pytest.fixture(scope="module", params=sorted(NAMED))
def network(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build(request.param)


def read(network: PreTrainedModel) -> config.ModelConfig:
    return config.read(json.loads(network.config.to_json_string(use_diff=False)))


def test_layers_keep_what_transformers_cache_keeps(network: PreTrainedModel) -> None:
    trial = compatibility._Trial(network)
    cache = trial.hf_cache()
    trial.forward(cache, 0, compatibility.NUM_TOKENS)
    seen, _ = compatibility.observe(network, cache)
    theirs = [(x.row_elements, x.window, bool(x.state_bytes)) for x in seen]
    ours = [
        (x.row_elements, x.window, bool(x.conv_elements or x.recurrent_elements))
        for x in read(network).layers
    ]
    assert ours == theirs


def test_parameters_are_counted_or_left_out(network: PreTrainedModel) -> None:
    ours = read(network).num_parameters
    assert ours in (None, sum(p.numel() for p in network.parameters()))
