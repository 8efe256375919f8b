"""Many programs in several processes: counts by kind, and each fault made small, saved and grouped by cause.

A process that dies or hangs costs one program, not the campaign.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from reink.fuzz.generate import generate
from reink.fuzz.injection import Tally
from reink.fuzz.program import FuzzProgram
from reink.fuzz.run import Outcome, Settings, run_program
from reink.fuzz.shrink import shrink

# Seconds that one program, shrinking apart, may take.
TIMEOUT = 180.0
SHRINK_TIMEOUT = 900.0
# Seconds that an idle process gets to end by itself.
TIME_TO_END = 10.0
# Kinds of outcome of a program that takes its process along.
ENDED = frozenset({"died", "timeout"})
# A process is replaced after so many programs: compilers keep what they made.
PROGRAMS_OF_A_PROCESS = 400
# So many faults of one key are made small; the rest are only counted.
MOST_OF_A_KEY = 12

Job = tuple[str, int, Outcome | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, with the program as it came and as small as it got."""

    number: int
    outcome: Outcome
    program: FuzzProgram

    @property
    def group(self) -> tuple[str, str, tuple[str, ...]]:
        """Faults of one group have, as far as can be told, one cause."""
        return self.outcome.kind, self.outcome.cause, self.program.rules

    def file(self) -> str:
        """The program as a file that runs by itself."""
        first = f"{self.outcome.kind} {self.outcome.cause}".strip()
        return self.program.file(f"{first}\n\n{self.outcome.detail.strip()}")


@dataclass(slots=True)
class Campaign:
    """The figures of a run. `counts` is by (kind, cause, whether the stock pipeline answered).

    `undecided` counts value proofs that were not decided, by reason. `stopped`: somebody pressed Ctrl-C before the end.
    """

    seed: int
    settings: Settings
    programs: int = 0
    seconds: float = 0.0
    counts: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    undecided: Counter[str] = field(default_factory=Counter)
    stopped: bool = False

    def count(self, number: int, outcome: Outcome) -> None:
        """Add one program. What ended its process cannot be made smaller and is kept as it is."""
        self.programs += 1
        self.counts[outcome.kind, outcome.cause, outcome.stock] += 1
        self.tally += outcome.tally
        if outcome.undecided:
            self.undecided[outcome.undecided] += 1
        if outcome.kind in ENDED:
            self.faults.append(Fault(number, outcome, generate(self.seed, number, gradients=self.settings.gradients)))

    def by_kind(self) -> Counter[str]:
        """Programs by kind of outcome."""
        found: Counter[str] = Counter()
        for (kind, _, _), count in self.counts.items():
            found[kind] += count
        return found

    @property
    def fault_count(self) -> int:
        """Programs that went wrong."""
        return sum(n for (kind, _, _), n in self.counts.items() if Outcome(kind).is_fault)

    def groups(self) -> list[tuple[tuple[str, str, tuple[str, ...]], list[Fault]]]:
        """The faults that were made small, by group, largest group first."""
        found: dict[tuple[str, str, tuple[str, ...]], list[Fault]] = {}
        for fault in self.faults:
            found.setdefault(fault.group, []).append(fault)
        return sorted(found.items(), key=lambda item: -len(item[1]))

    def save(self, folder: Path) -> list[Path]:
        """One file for each fault. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        saved: list[Path] = []
        for fault in self.faults:
            path = folder / f"{fault.outcome.kind}_{self.settings.against}_{self.seed}_{fault.number}.py"
            path.write_text(fault.file(), encoding="utf-8")
            saved.append(path)
        return saved


def run_campaign(
    settings: Settings,
    *,
    seed: int,
    programs: int,
    start: int = 0,
    minutes: float = 0.0,
    jobs: int = 1,
    shrunk: int = 60,
    progress: Callable[[Campaign], None] = lambda campaign: None,
) -> Campaign:
    """Run `programs` programs of `seed` from number `start` on, or as many as `minutes` allow if that is not 0.

    At most `shrunk` faults are made small. Ctrl-C ends the run with the figures so far.
    """
    campaign = Campaign(seed, settings)
    begun = time.monotonic()
    numbers = _numbers(start, programs, begun + 60 * minutes if minutes else 0.0)
    pool = _Pool(settings, seed, jobs, shrunk)
    try:
        for number, outcome, small in pool.run(numbers):
            if small is not None:
                campaign.faults.append(Fault(number, outcome, small))
            else:
                campaign.count(number, outcome)
            campaign.seconds = time.monotonic() - begun
            progress(campaign)
    except KeyboardInterrupt:
        campaign.stopped = True
    finally:
        pool.close()
    campaign.faults.sort(key=lambda f: f.number)
    return campaign


def _numbers(start: int, programs: int, deadline: float) -> Iterator[int]:
    number = start
    while (number < start + programs) if not deadline else (time.monotonic() < deadline):
        yield number
        number += 1


# -- processes ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Worker:
    """A process, what it works on, and since when."""

    process: Any
    connection: Connection
    job: Job | None = None
    since: float = 0.0
    done: int = 0


class _Pool:
    def __init__(self, settings: Settings, seed: int, jobs: int, most: int) -> None:
        self.settings, self.seed, self.most = settings, seed, most
        self.context = multiprocessing.get_context("spawn")
        self.workers = [self._start() for _ in range(max(1, jobs))]
        self.waiting: list[Job] = []
        self.shrunk: Counter[tuple[str, str]] = Counter()

    def _start(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(theirs, self.settings, self.seed), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def run(self, numbers: Iterator[int]) -> Iterator[tuple[int, Outcome, FuzzProgram | None]]:
        """The outcome of each number, and again with its small program for each fault that was shrunk."""
        more = True
        while more or self.waiting or any(w.job for w in self.workers):
            for k, worker in enumerate(self.workers):
                if worker.job is None:
                    job = self._next(numbers)
                    more = more and job is not None
                    if job is not None:
                        self.workers[k] = self._give(worker, job)
            yield from self._answers()

    def _next(self, numbers: Iterator[int]) -> Job | None:
        if self.waiting:
            return self.waiting.pop()
        number = next(numbers, None)
        return None if number is None else ("run", number, None)

    def _give(self, worker: _Worker, job: Job) -> _Worker:
        if worker.done >= PROGRAMS_OF_A_PROCESS or not worker.process.is_alive():
            _stop(worker)
            worker = self._start()
        worker.job, worker.since = job, time.monotonic()
        worker.connection.send(job)
        return worker

    def _answers(self) -> Iterator[tuple[int, Outcome, FuzzProgram | None]]:
        busy = [w for w in self.workers if w.job]
        ready = wait([w.connection for w in busy], timeout=1.0)
        for worker in busy:
            job = worker.job
            assert job is not None
            limit = TIMEOUT if job[0] == "run" else SHRINK_TIMEOUT
            answer = None
            if worker.connection in ready:
                answer = _received(worker)
            elif time.monotonic() - worker.since < limit:
                continue
            if answer is None:
                kind = "died" if worker.connection in ready else "timeout"
                _stop(worker)
                answer = (job[2] or Outcome(kind), None)
                if job[0] == "shrink":
                    answer = (answer[0], generate(self.seed, job[1], gradients=self.settings.gradients))
            worker.job = None
            worker.done += 1
            outcome, small = answer
            if job[0] == "run" and outcome.is_fault:
                self._to_shrink(job[1], outcome)
            yield job[1], outcome, small

    def _to_shrink(self, number: int, outcome: Outcome) -> None:
        few = self.shrunk.total() < self.most and self.shrunk[outcome.key] < MOST_OF_A_KEY
        if few and outcome.kind not in ENDED:
            self.shrunk[outcome.key] += 1
            self.waiting.append(("shrink", number, outcome))

    def close(self) -> None:
        """End every process."""
        for worker in self.workers:
            _stop(worker)


def _received(worker: _Worker) -> tuple[Outcome, FuzzProgram | None] | None:
    try:
        return worker.connection.recv()  # type: ignore[no-any-return]
    except (EOFError, OSError):
        return None


def _stop(worker: _Worker) -> None:
    """End a process: an idle one ends by itself when nobody talks to it any more, and tidies up."""
    worker.connection.close()
    if worker.job is None:
        worker.process.join(TIME_TO_END)
    worker.process.kill()
    worker.process.join()


def _serve(connection: Connection, settings: Settings, seed: int) -> None:
    """The life of a process: take a job, send its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the campaign, which ends this process
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    while True:
        try:
            what, number, outcome = connection.recv()
        except EOFError:
            return
        _quiet()
        program = generate(seed, number, gradients=settings.gradients)
        if what == "run":
            connection.send((run_program(program, settings), None))
        else:
            small, found = shrink(program, outcome, settings)
            connection.send((found, small))


def _quiet() -> None:
    """Nothing of what PyTorch logs is shown: it logs each error that it also raises. What reink logs is listened to."""
    for name, known in logging.root.manager.loggerDict.items():
        if name.split(".")[0] == "torch" and isinstance(known, logging.Logger):
            known.disabled = True
