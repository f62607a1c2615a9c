"""Those that `bench` compares: this engine, transformers in three dtypes, llama.cpp, a bare read.

Each holds the same rows and takes the same tokens, one step at a time, and gives the nanoseconds
of each step; its cache is then as before. Each is served by a process of its own, whose calls are
these classes' methods. It knows nothing of rounds or of statistics.

Try it: `python -m viz_engine bench --quick`
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from viz_engine.bench import process, report
from viz_engine.engine import generate, load
from viz_engine.engine.cache.cache import KVCache
from viz_engine.engine.convert import fetch, packaged_gguf
from viz_engine.engine.decode import Decoder
from viz_engine.engine.device import DTYPES
from viz_engine.engine.load import Loaded
from viz_engine.run import cost, machine
from viz_engine.run.codec import to_line
from viz_engine.run.command import QUESTIONS
from viz_engine.run.events import RunSettings, StepFinished

CHUNK = 256  # positions of a chunk of prefill
NUM_TRIED = 3  # of each way to read the weights, before one is taken


def save_rows(cache: KVCache, path: str) -> None:
    """Keep the K and V of each layer, as they are."""
    tensors = {}
    for index, both in enumerate(cache.peek(0, cache.get_seq_length())):
        for name, kept in zip(("keys", "values"), both, strict=True):
            tensors[f"{index}.{name}"] = kept.clone(memory_format=torch.contiguous_format)
    save_file(tensors, path)


def load_rows(path: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K and V of each layer, `[B, H, T, D]`."""
    tensors = load_file(path)
    return [(tensors[f"{i}.keys"], tensors[f"{i}.values"]) for i in range(len(tensors) // 2)]


def _ns(work: Callable[[], object]) -> int:
    """Nanoseconds of a call."""
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def _difference(logits: torch.Tensor, reference: str) -> dict[str, object]:
    """Against the kept logits `[tokens, vocab]`: the first token that would have been another, and
    the largest gap of a logit."""
    theirs = load_file(reference)["logits"]
    other = (logits.argmax(-1) != theirs.argmax(-1)).nonzero()
    first = int(other[0]) if len(other) else None
    return {"first": first, "num": len(theirs), "gap": float((logits - theirs).abs().max())}


def unique_bytes(network: torch.nn.Module) -> int:
    """Bytes of a model's weights, a tied table once."""
    return sum(p.nbytes for p in {p.data_ptr(): p for p in network.parameters()}.values())


class Ours:
    """This engine, as a run uses it: its cache, its decoder, its forward."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.weight_bytes = unique_bytes(loaded.model)
        self.cache: KVCache | None = None

    def about(self) -> dict[str, object]:
        """What the bench has to know of the model and of this engine."""
        loaded = self.loaded
        return {
            "weight_bytes": self.weight_bytes,
            "weight_bytes_once": loaded.weight_bytes_once,
            "lookup_row_bytes": loaded.lookup_row_bytes,
            "row_bytes": cost.row_bytes(loaded.spec, loaded.dtype),
            "model": loaded.spec.name,
            "folder": str(fetch(loaded.name)),
            "dtype": loaded.dtype,
            "num_threads": torch.get_num_threads(),
            "versions": generate.versions(),
        }

    def encode(self, num: int) -> list[int]:
        """A prompt of so many tokens."""
        asked = {"chat": True, "context_len": num, "filler": "en"}
        return self.loaded.tokenizer.encode_prompt(QUESTIONS["en"], **asked)

    def keep(self, ids: list[int], path: str) -> None:
        """Read a prompt, and keep its rows in a file: the others copy them."""
        self.prefill(torch.tensor([ids]), CHUNK)
        save_rows(self.cache, path)
        self.cache = None

    def prefill_ns(self, ids: list[int], chunk_len: int) -> int:
        """Nanoseconds of reading a prompt."""
        tensor = torch.tensor([ids])
        return _ns(lambda: self.prefill(tensor, chunk_len))

    def prefill(self, ids: torch.Tensor, chunk_len: int) -> torch.Tensor:
        """Read `[B, T]` in chunks (0: in one); logits `[B, vocab]`."""
        batch, num_columns = ids.shape
        self.cache = self._new_cache(batch, num_columns)
        positions = torch.arange(num_columns).expand(batch, -1)
        step = chunk_len or num_columns
        for first in range(0, num_columns, step):
            part = slice(first, min(first + step, num_columns))
            logits = self._forward(ids[:, part], positions[:, part], None, self.cache)
        return logits

    def hold(self, path: str, batch: int, num_columns: int) -> None:
        """Take the first columns of the one sequence kept there, `batch` times, and make ready."""
        self._take(load_rows(path), batch, num_columns)

    def _take(
        self, kept: list[tuple[torch.Tensor, torch.Tensor]], batch: int, num_columns: int
    ) -> None:
        self.batch, self.num_columns = batch, num_columns
        self.cache = self._new_cache(batch, num_columns + 1)
        self.decoder = Decoder(
            self.loaded,
            self._forward,
            batch=batch,
            masked=False,
            policy="full",
            eager=False,
            clock=time.perf_counter_ns,
        )
        self.decoder.make_ready(lambda num: self._new_cache(batch, num))
        for index, both in enumerate(kept):
            both = (t[:, :, :num_columns].expand(batch, -1, -1, -1) for t in both)
            self.cache.update(*both, index)

    def decode(self, tokens: list[int], at: int | None = None) -> list[int]:
        """Nanoseconds of each step; from column `at` on where it is given."""
        first = self.num_columns if at is None else at
        self.cache.place(first)
        took = []
        for column, token in enumerate(tokens, first):
            start = time.perf_counter_ns()
            self.cache.reserve(column + 1)
            ids = torch.full((self.batch, 1), token)
            positions = torch.full((self.batch, 1), column)
            self.decoder.step(ids, positions, None, self.cache).argmax(-1).tolist()
            took.append(time.perf_counter_ns() - start)
            self.decoder.took(took[-1])
        self.cache.place(first)
        return took

    def forward(self, tokens: list[int], num: int) -> list[int]:
        """Nanoseconds of each of `num` forwards of all these tokens behind the rows held, in
        Python: of a batch, of drafts, of a short chunk. The rows are then as before."""
        first = self.num_columns
        ids, positions = torch.tensor([tokens]), torch.arange(first, first + len(tokens))[None]
        took = []
        for _ in range(num):
            self.cache.reserve(first + len(tokens))
            self.cache.place(first)
            took.append(_ns(lambda: self._forward(ids, positions, None, self.cache).argmax(-1)))
        self.cache.place(first)
        return took

    def difference(self, ids: list[int], tokens: list[int], reference: str) -> dict[str, object]:
        """Of its logits from those kept, the same tokens forced."""
        return _difference(self.logits(ids, tokens), reference)

    def instrumentation(self, run: list[int], num_steps: int) -> dict[str, object]:
        """What records, sampling and sensors add, each record made a line: of decode steps against
        the same steps bare, by turns, and of a whole run (tokens read, tokens written). Of prefill
        it is what is done outside the timed spans, since its chunks differ by more than that."""
        settings = RunSettings(
            model=self.loaded.name,
            prompts=(QUESTIONS["en"],),
            context_len=run[0],
            new_tokens=num_steps + 2,
            stop_token_ids=(),
        )
        events = generate.generate(self.loaded, settings, run_id="bench")
        started = next(events)
        ids = torch.tensor(started.prompt_token_ids)
        to_line(started)
        prefill_ns = outside_ns = 0
        while True:
            start = time.perf_counter_ns()
            for event in events:
                line = to_line(event)
                if isinstance(event, StepFinished):
                    break
            if event.phase == "decode":
                break
            prefill_ns += event.duration_ns
            outside_ns += time.perf_counter_ns() - start - event.duration_ns
        bare = Ours(self.loaded)
        bare.prefill(ids, settings.chunk_len)
        bare._take(bare.cache.peek(0, ids.shape[1]), 1, ids.shape[1])
        column, token = ids.shape[1], 1
        on, off = [], []
        for _ in range(num_steps):
            start = time.perf_counter_ns()
            for event in events:
                line = to_line(event)
                if isinstance(event, StepFinished):
                    break
            on.append(time.perf_counter_ns() - start)
            start = time.perf_counter_ns()
            bare.cache.reserve(column + 1)
            fed = torch.tensor([[token]]), torch.tensor([[column]]), None
            token = bare.decoder.step(*fed, bare.cache).argmax(-1).tolist()[0]
            off.append(time.perf_counter_ns() - start)
            column += 1
        events.close()
        of_steps = report.trimmed_share(on, off)
        decode_ns = run[1] * statistics.median(off)
        extra_ns = outside_ns + of_steps * decode_ns
        return {
            "share": extra_ns / (prefill_ns + decode_ns),
            "of_steps": of_steps,
            "num": len(on),
            "run": run,
            "line_bytes": len(line),
            "parts": [
                {"name": part.name, "on": part.on, "reason": str(part.reason)}
                for part in started.parts
            ],
        }

    def logits(self, ids: list[int], tokens: list[int]) -> torch.Tensor:
        """Logits `[tokens, vocab]` after the prompt and after each token but the last."""
        seen = [self.prefill(torch.tensor([ids]), CHUNK)]
        for column, token in enumerate(tokens[:-1], len(ids)):
            self.cache.reserve(column + 1)
            at = torch.tensor([[column]])
            seen.append(self._forward(torch.tensor([[token]]), at, None, self.cache))
        return torch.cat(seen).float()

    def _new_cache(self, batch: int, num_columns: int) -> KVCache:
        return generate.new_cache(self.loaded, "full", batch, num_columns)

    def _forward(self, *step: object) -> torch.Tensor:
        return generate.forward(self.loaded, *step)


class Transformers:
    """What `generate` does for a step: the model with DynamicCache and its default attention."""

    def __init__(self, folder: Path | str, dtype: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], attn_implementation="sdpa"
        ).eval()
        self.weight_bytes = unique_bytes(self.model)
        self.cache: DynamicCache | None = None

    def about(self) -> dict[str, object]:
        return {"weight_bytes": self.weight_bytes}

    @torch.inference_mode()
    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        self.cache = DynamicCache(config=self.model.config)
        return self._step(ids)

    def prefill_ns(self, ids: list[int]) -> int:
        """Nanoseconds of reading a prompt."""
        tensor = torch.tensor([ids])
        return _ns(lambda: self.prefill(tensor))

    def hold(self, path: str, batch: int, num_columns: int) -> None:
        """As `Ours.hold`."""
        self.cache = DynamicCache(config=self.model.config)
        for index, both in enumerate(load_rows(path)):
            both = [t[:, :, :num_columns] for t in both]
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

    def drop(self) -> None:
        """Give the cache's memory back."""
        self.cache = None

    def keep_logits(self, ids: list[int], num: int, path: str) -> list[int]:
        """Its own next `num` tokens, with the logits of each kept in a file."""
        logits = self.logits(ids, None, num)
        save_file({"logits": logits}, path)
        return logits.argmax(-1).tolist()

    def difference(self, ids: list[int], tokens: list[int], reference: str) -> dict[str, object]:
        """As `Ours.difference`."""
        return _difference(self.logits(ids, tokens, len(tokens)), reference)

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

    def __init__(self, folder: str, most_columns: int, num_threads: int) -> None:
        import xllamacpp

        path = Path(folder) / "float16.gguf"
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

    def about(self) -> dict[str, object]:
        return {"weight_bytes": self.weight_bytes}

    def prefill_ns(self, ids: list[int]) -> int:
        """Nanoseconds of reading a prompt."""
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


class BareRead:
    """The fastest of torch's ways to read as many bytes as the weights have, all threads: the
    floor of a step."""

    def __init__(self, num_bytes: int) -> None:
        once = torch.ones(num_bytes // 4, dtype=torch.float32)
        self.num_bytes = once.nbytes
        ways = [once.sum, lambda: torch.dot(once, once)]
        self.way = min(ways, key=lambda way: min(_ns(way) for _ in range(NUM_TRIED)))

    def about(self) -> dict[str, object]:
        return {"num_bytes": self.num_bytes}

    def decode(self, num: int) -> list[int]:
        """Nanoseconds of each read."""
        return [_ns(self.way) for _ in range(num)]


class Alone:
    """A process that only runs the engine, once: what it holds."""

    def __init__(self, context: int) -> None:
        loaded = load.load(device="cpu")
        settings = RunSettings(
            model=loaded.name,
            prompts=(QUESTIONS["en"],),
            context_len=context,
            new_tokens=4,
            stop_token_ids=(),
        )
        reserved = held = 0
        for event in generate.generate(loaded, settings, run_id="bench"):
            if isinstance(event, StepFinished):
                reserved, held = event.kv_reserved_bytes, machine.process_bytes()
        self.found = {
            "context": context,
            "peak_bytes": machine.peak_process_bytes(),
            "held_bytes": held,
            "weight_bytes": unique_bytes(loaded.model),
            "reserved_bytes": reserved,
        }

    def about(self) -> dict[str, object]:
        return self.found


def write_gguf(path: Path) -> None:
    """The packaged model's weights, as this engine has them (bfloat16), in float16."""
    from gguf import GGUFReader, GGUFWriter, dequantize

    reader = GGUFReader(packaged_gguf())
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


# --- its process --------------------------------------------------------------------------------


def _ours(model: str | None) -> Ours:
    return Ours(load.load(*([] if model is None else [model]), device="cpu"))


KINDS: dict[str, Callable[..., process.Child]] = {
    "ours": _ours,
    "transformers": Transformers,
    "llama": LlamaCpp,
    "read": BareRead,
    "alone": Alone,
}


def command(kind: str) -> Sequence[str]:
    """What starts the process of such a contender."""
    return [sys.executable, "-m", "viz_engine.bench.contenders", kind]


if __name__ == "__main__":
    transformers_logging.disable_progress_bar()
    process.serve(KINDS[sys.argv[1]])
