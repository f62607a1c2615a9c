"""Models on devices, as the memory page's boxes would have them."""

from viz_engine.memory import devices, lengths
from viz_engine.memory.capacity import Workload
from viz_engine.memory.deployment import Settings
from viz_engine.memory.estimate import Choice
from viz_engine.model import config

NAMES = sorted(config.preset_table())
LOAD = Workload(lengths=lengths.averages(2048, 512), think_s=30)


def choose(name: str = "llama-3.1-8b", device: str = "NVIDIA H100 80 GB SXM", **changes) -> Choice:
    asked = Settings(**({"context_len": 8192, "num_sequences": 16} | changes))
    return Choice(
        model=config.preset(name),
        settings=asked,
        device=devices.device(device),
        num_devices=asked.tp * asked.pp,
        load=LOAD,
    )
