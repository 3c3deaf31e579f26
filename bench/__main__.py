"""`python -m bench`: measure everything on this machine and add one dated section to bench/RESULTS.md.

    python -m bench [--quick] [--only PART,PART] [--peer "COMMAND"]... [--service] [--no-append]

A --peer is a command that prints one JSON line with `system`, `w1` and `single`; it is run between two of ours.
Nothing else should run on the machine. In full it takes about a quarter of an hour; --quick takes under a minute, shows
how it works, and leaves no record, since its figures are too short to quote.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Callable

from bench import load_parts, speed_parts
from bench.context import Bench
from bench.load import RATES
from bench.machine import ROOT, describe, versions
from bench.peers import PeerError
from bench.progress import Progress
from bench.report import RESULTS, append, section
from inference.config import ParameterError
from inference.execution.models.errors import ModelError

STAGES: dict[str, tuple[str, Callable[[Bench], str]]] = {
    "w1": ("W1 and one stream", speed_parts.w1),
    "steps": ("Where the time of a step goes", speed_parts.where_a_step_goes),
    "policies": ("Three policies, all at once", load_parts.three_policies),
    "load": ("Three policies over offered load", load_parts.over_load),
    "waiting": ("Scheduling with many waiting", load_parts.many_waiting),
    "gaps": ("Gaps between tokens while long prompts arrive", load_parts.token_gaps),
    "drafts": ("Drafts from the prompt", load_parts.guessing),
    "service": ("Through the service", speed_parts.through_sockets),
    "roofline": ("On a GPU", speed_parts.on_a_gpu),
}
PICTURE = ROOT / "docs" / "pictures" / "load.svg"
RATE_LIMITS, SEAT_LIMITS = (0.01, 1000.0), (1, 1024)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--model", default="smollm2", help="as BATCHSCOPE_MODEL")
    found.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    found.add_argument("--quick", action="store_true", help="under a minute, no record")
    found.add_argument("--only", type=parts, default=[], metavar="PARTS", help=f"some of: {', '.join(STAGES)}")
    found.add_argument("--peer", type=command, action="append", default=[], metavar="COMMAND")
    found.add_argument("--peers", type=commands, default=[], metavar="COMMANDS", help="the same, with ; between them")
    found.add_argument("--service", action="store_true", help="also through `manage.py serve`, on a free port")
    found.add_argument("--rates", type=rates, default=RATES, metavar="RATES", help="requests/s of the load, as 1,2,4")
    found.add_argument("--seats", type=seats, default=16, help="of the comparison of policies")
    found.add_argument("--no-append", action="store_true", help="print the section, leave RESULTS.md and picture alone")
    return found


def parts(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STAGES:
            raise argparse.ArgumentTypeError(f"there is no part {name!r}; the {len(STAGES)} are {', '.join(STAGES)}")
    return names


def command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise argparse.ArgumentTypeError(f"{text!r} can't be run: there is no program {(words or [''])[0]!r}")
    return text


def commands(text: str) -> list[str]:
    return [command(one.strip()) for one in text.split(";") if one.strip()]


def rates(text: str) -> tuple[float, ...]:
    least, most = RATE_LIMITS
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1,2,4") from None
    for rate in found:
        if not least <= rate <= most:
            raise argparse.ArgumentTypeError(f"a rate is {rate:g}; it must be from {least:g} to {most:g} requests/s")
    return tuple(sorted(set(found)))


def seats(text: str) -> int:
    least, most = SEAT_LIMITS
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"seats is {text!r}; it must be a whole number from {least} to {most}")
    return int(text)


def chosen(options: argparse.Namespace) -> list[str]:
    """The parts of this run, in their order. The service's is on request only."""
    wanted = options.only or [name for name in STAGES if name != "service"]
    return [name for name in STAGES if name in wanted or (name == "service" and options.service)]


def run(options: argparse.Namespace) -> str:
    """Measure; the section's text."""
    names = chosen(options)
    progress = Progress(len(names))
    leaves_no_record = options.quick or options.no_append
    bench = Bench(
        progress,
        options.model,
        options.dtype,
        options.quick,
        [*options.peer, *options.peers],
        options.rates,
        options.seats,
        None if leaves_no_record else PICTURE,
    )
    texts = []
    for name in names:
        heading, measure = STAGES[name]
        progress.stage(heading)
        texts.append((heading, measured(measure, bench)))
    title = f"`python -m bench{' --quick' if options.quick else ''}`, {options.model}"
    return section(title, describe(), versions(), texts)


def measured(measure: Callable[[Bench], str], bench: Bench) -> str:
    """What a part has to say. One that breaks does not take along what others have measured."""
    try:
        return measure(bench)
    except (ModelError, ParameterError, PeerError):
        raise
    except Exception as error:
        traceback.print_exc()
        return f"Not measured: {type(error).__name__}: {error}"


def main() -> int:
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    try:
        text = run(options)
    except (ModelError, ParameterError, PeerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped; nothing was recorded", file=sys.stderr)
        return 130
    print(text)
    if not (options.quick or options.no_append):
        append(text)
        print(f"Added to {RESULTS.name}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
