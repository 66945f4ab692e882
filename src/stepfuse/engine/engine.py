"""The engine: schedule → plan → run → sample → emit, over one model and one set of caches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from stepfuse.core.errors import CacheError, RequestError
from stepfuse.engine.build import build
from stepfuse.engine.parts import Closed, EngineOptions, Parts, key_tuple
from stepfuse.engine.prompts import Params, Prompt, Prompts, check_prompts, make_requests
from stepfuse.engine.request import (
    FinishReason,
    RequestOutput,
    SamplingParams,
    StreamDelta,
)
from stepfuse.engine.sampler import choose
from stepfuse.engine.scheduler import Scheduler, Work, step_input
from stepfuse.engine.score import score_tokens
from stepfuse.engine.sequence import Request
from stepfuse.engine.statistics import EngineStats, Statistics
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.plan import DecodeBackend, plan
from stepfuse.weights.prepared import Prepared


class Engine:
    """Serves one checkpoint. Concurrent callers share the batch; steps never overlap.

    `model_path`: a checkpoint folder or `k3-tiny`. `threads` None: every core this process may use.
    `max_model_len`: longest prompt + output; `max_num_seqs`: requests running at once;
    `cache_bytes` None: what these two need. `allow_config_keys`: unknown config keys accepted
    knowingly. `prefill_chunk`: most prompt tokens of one step. `prepared`: auto maps the
    checkpoint's prepared file (`stepfuse prepare`) where it is valid, off packs the weights,
    require refuses to pack.
    Raises a StepfuseError (config, checkpoint, memory plan, unsupported backend) before it serves.
    """

    def __init__(
        self,
        model_path: str | Path,
        decode_backend: DecodeBackend = "auto",
        kv_cache_dtype: KvDtype = "bf16",
        threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        cache_bytes: int | None = None,
        allow_config_keys: str | Sequence[str] = (),
        prefill_chunk: int = 512,
        prepared: Prepared = "auto",
    ) -> None:
        options = EngineOptions(
            model_path=str(model_path),
            decode_backend=decode_backend,
            kv_cache_dtype=kv_cache_dtype,
            threads=threads,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            cache_bytes=cache_bytes,
            allow_config_keys=key_tuple(allow_config_keys),
            prefill_chunk=prefill_chunk,
            prepared=prepared,
        )
        self._start(build(options))

    @classmethod
    def of(cls, parts: Parts) -> Engine:
        """An engine over parts built elsewhere."""
        engine = cls.__new__(cls)
        engine._start(parts)
        return engine

    def _start(self, parts: Parts) -> None:
        self.parts = parts
        self.statistics = Statistics()
        self._scheduler = Scheduler(parts.pool, parts.max_num_seqs, parts.prefill_chunk)
        self._arrivals: deque[Request] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def generate(self, prompts: Prompts, sampling_params: Params = None) -> list[RequestOutput]:
        """Complete every prompt (text or token ids); one output per prompt, in order."""
        requests = self._requests(prompts, sampling_params)
        for request in requests:
            request.streams = False
        try:
            self._arrivals.extend(requests)
            while any(r.finish_reason is None for r in requests):
                self.step()
        finally:
            self.cancel(requests)
        return [r.output() for r in requests]

    def stream(self, prompts: Prompts, sampling_params: Params = None) -> Iterator[StreamDelta]:
        """As `generate`, step by step. Closing the iterator cancels what has not finished."""
        return self._deltas(self._requests(prompts, sampling_params))

    def submit(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Request:
        """Queue one prompt for whoever calls `step`; read its `deltas` and `output()`."""
        (request,) = self._requests([prompt], sampling_params)
        self._arrivals.append(request)
        return request

    def step(self) -> bool:
        """Run one step for all requests; False when there was nothing to do.

        When a step raises, every unfinished request ends with "error", all it held is free again,
        and the exception goes to the caller.
        """
        with self._lock:
            started = time.perf_counter_ns()
            self._take_arrivals()
            try:
                work = self._schedule()
                if not work:
                    return False
                step = step_input(work)
                chosen = plan(step, self.parts.backend, self.parts.prepared_rows)
                output = self.parts.runtime(chosen.path).run(step)
                self._emit(work, output.logits)
            except BaseException as error:
                self._fail_all(error)
                raise
            self.statistics.record(chosen, len(work), started, output.native_ns)
            return True

    def cancel(self, requests: Sequence[Request]) -> None:
        """End unfinished requests with "abort" and free what they hold."""
        if all(r.finish_reason is not None for r in requests):
            return
        with self._lock:
            self._take_arrivals()
            for request in requests:
                if request.finish_reason is None:
                    self._finish(request, "abort", None)

    def score(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits FP32 [T, vocab] after each of T tokens, through the engine's decode backend.

        One token per step where the specialized path serves, in chunks on the standard path.
        """
        (prompt,) = check_prompts([list(token_ids)], self.parts, room=0)
        with self._lock:
            self._check_open()
            return score_tokens(prompt[1], self.parts, self._scheduler, self.statistics)

    def stats(self) -> EngineStats:
        """Counts and medians since the engine started."""
        with self._lock:
            return self.statistics.snapshot(
                preemptions=self._scheduler.preemptions,
                waiting=len(self._scheduler.waiting) + len(self._arrivals),
                running=len(self._scheduler.running),
                unsupported=self.parts.unsupported,
            )

    def close(self) -> None:
        """End every request with "abort", let go of weights and caches; twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._take_arrivals()
            for request in self._scheduler.unfinished():
                self._finish(request, "abort", None)
            self.parts.close()
            # The runtimes hold the weights.
            self.parts = replace(self.parts, standard=Closed(), fused=None, team=None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the engine is closed; make a new Engine")

    def _requests(self, prompts: Prompts, sampling_params: Params) -> list[Request]:
        self._check_open()
        return make_requests(prompts, sampling_params, self.parts)

    def _deltas(self, requests: list[Request]) -> Iterator[StreamDelta]:
        try:
            self._arrivals.extend(requests)
            open_requests = requests
            while open_requests:
                self.step()
                # A request that ended has all its deltas queued: read the state before the queue.
                still_open = [r for r in open_requests if r.finish_reason is None]
                for request in open_requests:
                    while request.deltas:
                        yield request.deltas.popleft()
                open_requests = still_open
        finally:
            self.cancel(requests)

    def _take_arrivals(self) -> None:
        while self._arrivals:
            request = self._arrivals.popleft()
            if self._closed:
                self._finish(request, "abort", None)
            else:
                self._scheduler.add(request)
                self.statistics.tokens["prompt"] += request.prompt_len

    def _schedule(self) -> list[Work]:
        while True:
            try:
                return self._scheduler.schedule()
            except CacheError as error:
                self._finish(self._scheduler.waiting[0], "error", str(error))

    def _emit(self, work: list[Work], logits: torch.Tensor) -> None:
        chosen = [w.request for w in work if w.last]
        picks = choose(logits, chosen) if chosen else []
        for item in work:
            item.request.cached += item.rows
        for request, pick in zip(chosen, picks, strict=True):
            if pick.token is None:
                self._finish(request, "error", "the model's logits for this request are not finite")
                continue
            request.accept(pick.token, pick.logprob)
            self.statistics.tokens["generated"] += 1
            if request.finish_reason is not None:
                self._finish(request, request.finish_reason, None)

    def _finish(self, request: Request, reason: FinishReason, error: str | None) -> None:
        self._scheduler.remove(request)
        request.end(reason, error)
        self.statistics.finished[reason] += 1

    def _fail_all(self, error: BaseException) -> None:
        for request in self._scheduler.unfinished():
            self._finish(request, "error", f"{type(error).__name__}: {error}")
