"""One trace, every definition: TTFT, ITL and TPOT as five benchmark tools define them.

The tools use the same words for different numbers. All are computed here from the same records, so
that a figure from one tool can be read beside a figure from another. A request that failed or was
cancelled enters no figure; where a definition gives nothing (one token has no gap) the value is
None, never 0. Sources, read in 2026: vLLM `benchmarks/serve.py`, SGLang `bench_serving.py`,
GuideLLM `request_stats.py`, AIPerf `inter_token_latency_metric.py`, llmperf
`token_benchmark_ray.py`.

Try it: `python -c "from viz_engine.run.log import RunLog; \
from viz_engine.analysis import definitions as d; \
print(d.report(RunLog.read(open('run.jsonl','rb').read())))"`
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from viz_engine.run.log import RunLog
from viz_engine.run.metrics import percentile

PERCENTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens that reached the client together."""

    t_ns: int
    num_tokens: int
    has_text: bool  # a token that completes no character, or only ends the text, shows nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence of a run, as a client would have seen it. Times are of one clock."""

    sent_ns: int
    chunks: tuple[Chunk, ...]
    closed_ns: int | None  # when the stream ended
    complete: bool  # ended by itself: not cancelled, no error

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def arrivals_ns(self) -> list[int]:
        """When chunks arrived, since it was sent."""
        return [chunk.t_ns - self.sent_ns for chunk in self.chunks]

    @property
    def shown_ns(self) -> list[int]:
        """When chunks with text arrived, since it was sent."""
        return [chunk.t_ns - self.sent_ns for chunk in self.chunks if chunk.has_text]


def requests(log: RunLog) -> list[Request]:
    """The sequences of a run. Sent: when the engine accepted it (loaded and warm)."""
    if log.started is None:
        return []
    ended = log.finished
    found = []
    for b in range(log.started.settings.batch):
        chunks = tuple(
            Chunk(
                t_ns=step.end_ns,
                num_tokens=len(step.token_ids[b]),
                has_text=any(step.token_texts[b]),
            )
            for step in log.steps
            if step.token_ids[b]
        )
        reason = ended.sequence_reasons[b] if ended and ended.sequence_reasons else None
        found.append(
            Request(
                sent_ns=log.started.accepted_ns,
                chunks=chunks,
                # The last line of a stream follows the last token; here, the end of the run.
                closed_ns=ended.end_ns if ended else None,
                complete=reason in ("stop", "length") and bool(chunks),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A distribution in nanoseconds. Percentiles are numpy's linear ones."""

    num: int
    mean: float | None
    median: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    most: float | None


def stats(values: Sequence[float]) -> Stats:
    """Statistics of `values`; of none, None for each."""
    median, p90, p95, p99 = (percentile(list(values), share) for share in PERCENTILES)
    return Stats(
        num=len(values),
        mean=sum(values) / len(values) if values else None,
        median=median,
        p90=p90,
        p95=p95,
        p99=p99,
        most=max(values, default=None),
    )


Values = Callable[[Request], Iterable[float]]  # of one request, nanoseconds; none where undefined


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """How one tool computes its figures. Its formulas in words are `definition.TOOL.FIGURE`."""

    tool: str
    ttft: Values
    itl: Values
    tpot: Values


def _gaps(times: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(times, times[1:], strict=False)]


def _first(request: Request) -> list[float]:
    return request.arrivals_ns[:1]


def _mean_gap(request: Request) -> list[float]:
    """(last token - first token) / (tokens - 1)."""
    times, more = request.arrivals_ns, request.num_tokens - 1
    return [(times[-1] - times[0]) / more] if more > 0 and times else []


def _tpot_to_close(request: Request) -> list[float]:
    """SGLang stamps the latency on the last line of the stream, after the last token."""
    times, more = request.shown_ns, request.num_tokens - 1
    if more <= 0 or not times or request.closed_ns is None:
        return []
    return [(request.closed_ns - request.sent_ns - times[0]) / more]


def _guidellm_itl(request: Request) -> list[float]:
    """Each request's average, counted once for each of its gaps."""
    return _mean_gap(request) * (request.num_tokens - 1)


def _with_prefill(request: Request) -> list[float]:
    """(last token - sent) / tokens."""
    times = request.arrivals_ns
    return [times[-1] / request.num_tokens] if times else []


DEFINITIONS = (
    Definition(
        tool="vllm", ttft=_first, itl=lambda r: _gaps(r.arrivals_ns), tpot=_mean_gap
    ),
    Definition(
        tool="sglang",
        ttft=lambda r: r.shown_ns[:1],
        itl=lambda r: _gaps(r.shown_ns),
        tpot=_tpot_to_close,
    ),
    Definition(tool="guidellm", ttft=_first, itl=_guidellm_itl, tpot=_with_prefill),
    Definition(tool="aiperf", ttft=_first, itl=_mean_gap, tpot=_mean_gap),
    Definition(tool="llmperf", ttft=_first, itl=_with_prefill, tpot=lambda r: ()),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one tool over the requests that count."""

    tool: str
    num_requests: int  # that count
    num_left_out: int  # cancelled, failed, without a token
    ttft: Stats
    itl: Stats
    tpot: Stats


def report(*logs: RunLog) -> list[Report]:
    """Every tool's figures from the same runs."""
    seen = [request for log in logs for request in requests(log)]
    kept = [request for request in seen if request.complete]
    return [
        Report(
            tool=one.tool,
            num_requests=len(kept),
            num_left_out=len(seen) - len(kept),
            ttft=stats([value for request in kept for value in one.ttft(request)]),
            itl=stats([value for request in kept for value in one.itl(request)]),
            tpot=stats([value for request in kept for value in one.tpot(request)]),
        )
        for one in DEFINITIONS
    ]
