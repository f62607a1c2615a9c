"""Those that `bench` compares: this engine, transformers in three dtypes, llama.cpp.

Each holds the same rows and takes the same tokens, one step at a time, and gives the nanoseconds
of each step; its cache is then as before. It knows nothing of rounds or of statistics.

Try it: `python -m viz_engine bench --quick`
"""

import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from viz_engine.engine import generate, load
from viz_engine.engine.cache.cache import Rows
from viz_engine.engine.decode import Decoder
from viz_engine.engine.load import DTYPES, Loaded


def unique_bytes(network: torch.nn.Module) -> int:
    """Bytes of a model's weights, a tied table once."""
    return sum(p.nbytes for p in {p.data_ptr(): p for p in network.parameters()}.values())


class Ours:
    """This engine, as a run uses it: its rows, its decoder, its forward."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.weight_bytes = unique_bytes(loaded.model)
        self.rows: Rows | None = None

    def prefill(self, ids: torch.Tensor, chunk_len: int) -> torch.Tensor:
        """Read `[B, T]` in pieces (0: in one); logits `[B, vocab]`."""
        batch, num_columns = ids.shape
        self.rows = generate.new_rows(self.loaded, batch, num_columns)
        positions = torch.arange(num_columns).expand(batch, -1)
        step = chunk_len or num_columns
        for first in range(0, num_columns, step):
            part = slice(first, min(first + step, num_columns))
            logits = self._forward(ids[:, part], positions[:, part], None, self.rows)
        return logits

    def hold(self, source: Rows, batch: int, num_columns: int) -> None:
        """Take the first columns of `source`'s one sequence, `batch` times, and make ready."""
        self.batch, self.num_columns = batch, num_columns
        self.rows = rows = generate.new_rows(self.loaded, batch, num_columns + 1)
        self.decoder = Decoder(
            self.loaded,
            self._forward,
            batch=batch,
            masked=False,
            cached=True,
            eager=False,
            clock=time.perf_counter_ns,
        )
        self.decoder.make_ready(lambda num: generate.new_rows(self.loaded, batch, num))
        for own, layer in zip(rows.layers, source.layers, strict=True):
            own.keys[:, :, :num_columns] = layer.keys[:, :, :num_columns]
            own.values[:, :, :num_columns] = layer.values[:, :, :num_columns]
        rows.place(num_columns)

    def decode(self, tokens: list[int], at: int | None = None) -> list[int]:
        """Nanoseconds of each step; from column `at` on where it is given."""
        first = self.num_columns if at is None else at
        self.rows.place(first)
        took = []
        for column, token in enumerate(tokens, first):
            start = time.perf_counter_ns()
            self.rows.reserve(column + 1)
            ids = torch.full((self.batch, 1), token)
            positions = torch.full((self.batch, 1), column)
            self.decoder.step(ids, positions, None, self.rows).argmax(-1).tolist()
            took.append(time.perf_counter_ns() - start)
            self.decoder.took(took[-1])
        self.rows.place(first)
        return took

    def logits(self, ids: list[int], tokens: list[int]) -> torch.Tensor:
        """Logits `[tokens, vocab]` after the prompt and after each token but the last."""
        seen = [self.prefill(torch.tensor([ids]), 256)]
        for column, token in enumerate(tokens[:-1], len(ids)):
            self.rows.reserve(column + 1)
            at = torch.tensor([[column]])
            seen.append(self._forward(torch.tensor([[token]]), at, None, self.rows))
        return torch.cat(seen).float()

    def _forward(self, *step: object) -> torch.Tensor:
        return generate.forward(self.loaded, *step)


class Transformers:
    """What `generate` does for a step: the model with DynamicCache and its default attention."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], attn_implementation="sdpa"
        ).eval()
        self.weight_bytes = unique_bytes(self.model)
        self.cache: DynamicCache | None = None

    @torch.inference_mode()
    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        self.cache = DynamicCache(config=self.model.config)
        return self._step(ids)

    def hold(self, source: Rows, batch: int, num_columns: int) -> None:
        self.cache = DynamicCache(config=self.model.config)
        for index, layer in enumerate(source.layers):
            both = (layer.keys[:, :, :num_columns], layer.values[:, :, :num_columns])
            both = [t.to(self.model.dtype).expand(batch, -1, -1, -1).contiguous() for t in both]
            self.cache.update(*both, index)

    @torch.inference_mode()
    def decode(self, tokens: list[int]) -> list[int]:
        took = []
        for token in tokens:
            batch = self.cache.layers[0].keys.shape[0]
            start = time.perf_counter_ns()
            self._step(torch.full((batch, 1), token)).argmax(-1).tolist()
            took.append(time.perf_counter_ns() - start)
        self.cache.crop(-len(tokens))
        return took

    @torch.inference_mode()
    def logits(self, ids: list[int], tokens: list[int] | None, num: int) -> torch.Tensor:
        """As `Ours.logits`; without `tokens` it takes its own, `num` of them."""
        seen = [self.prefill(torch.tensor([ids]))]
        for i in range(num - 1):
            token = int(seen[-1].argmax()) if tokens is None else tokens[i]
            seen.append(self._step(torch.tensor([[token]])))
        return torch.cat(seen).float()

    @torch.inference_mode()
    def uncached(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits `[B, vocab]` of the last column of `[B, T]`, as `use_cache=False` makes them."""
        return self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]

    def _step(self, ids: torch.Tensor) -> torch.Tensor:
        out = self.model(input_ids=ids, cache=self.cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1]


class LlamaCpp:
    """llama.cpp's own server in this process, on float16 weights. It takes its own tokens, and
    its times are those that it reports."""

    def __init__(self, folder: Path, most_columns: int, num_threads: int) -> None:
        import xllamacpp

        path = folder / "float16.gguf"
        write_gguf(path)
        self.weight_bytes = path.stat().st_size
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = most_columns
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = num_threads
        params.verbosity = 0
        params.cache_ram_mib = 0
        self.server = xllamacpp.Server(params)
        self.ids: list[int] = []

    def prefill(self, ids: list[int]) -> int:
        """Nanoseconds."""
        return int(self._ask(ids, 1, keep=False)["prompt_ms"] * 1e6)

    def hold(self, ids: list[int]) -> None:
        self.ids = ids

    def decode(self, num: int) -> list[int]:
        """The mean of `num` steps, as one number; the prompt's rows are kept between calls."""
        return [int(self._ask(self.ids, num + 1, keep=True)["predicted_per_token_ms"] * 1e6)]

    def _ask(self, ids: list[int], num: int, *, keep: bool) -> dict[str, float]:
        asked = {"prompt": ids, "n_predict": num, "temperature": 0.0}
        answer = self.server.handle_completions(asked | {"ignore_eos": True, "cache_prompt": keep})
        return answer["timings"]


def write_gguf(path: Path) -> None:
    """The packaged model's weights, as this engine has them (bfloat16), in float16."""
    from gguf import GGUFReader, GGUFWriter, dequantize

    reader = GGUFReader(load.packaged_gguf())
    writer = GGUFWriter(path, "llama")
    made = ("general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in made:
            kinds = [*field.types, None]
            writer.add_key_value(name, field.contents(), kinds[0], kinds[1])
    writer.add_file_type(1)  # mostly float16
    for tensor in reader.tensors:
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).bfloat16()
        weight = weight.float() if weight.dim() == 1 else weight.half()
        writer.add_tensor(tensor.name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
