"""Benchmarks: ratios against a peer measured in the same run.

    python benchmarks/run.py                      # all of them
    python benchmarks/run.py kv_step --quick      # one, smaller

Names are the keys of `BENCHMARKS`.
"""

from __future__ import annotations

import argparse
import sys

import call_overhead
import compile_time
import functionalize_cost
import impossible
import in_inductor
import kv_step
import placement
import torch
from rich.console import Console

BENCHMARKS = {
    "compile_time": compile_time.run,
    "functionalize_cost": functionalize_cost.run,
    "call_overhead": call_overhead.run,
    "kv_step": kv_step.run,
    "impossible": impossible.run,
    "placement": placement.run,
    "in_inductor": in_inductor.run,
}


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="smaller programs, fewer calls")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    # On shared cores two threads spend longer waiting for each other than such small products take.
    torch.set_num_threads(1)
    console = Console()
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](console, arguments.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
