"""Two processes with a pipe between them, which must both succeed."""

import multiprocessing
import sys


def run_both(run, argument, seconds):
    """Calls `run(argument, pipe, is_first)` in both, and ends this program: with an error if one fails, or is late."""
    multiprocessing.set_start_method("spawn")
    pipes = multiprocessing.Pipe()
    ends = [multiprocessing.Process(target=run, args=(argument, pipe, pipe is pipes[0])) for pipe in pipes]
    for end in ends:
        end.start()
    for end in ends:
        end.join(seconds)
        end.kill()
    sys.exit(any(end.exitcode != 0 for end in ends))
