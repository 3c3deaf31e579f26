"""Faults are counted by the code that their log line begins with: each warning or error is one line and one count.

Knows: the form of log lines ("code: what happened", or the code alone). Must not know: which codes there are, who reads
the counts. Works on whatever the standard library's logging is set up to do, so nobody has to remember the count.
"""

from __future__ import annotations

import logging
import re

from inference.serving.tally import Tally

OTHER = "other"  # of lines that other libraries write
_CODE = re.compile(r"([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?::|$)")


class FaultCounter(logging.Handler):
    """labels: those that stand before the code in the metric `faults_total`."""

    def __init__(self, tally: Tally, *labels: str) -> None:
        super().__init__(logging.WARNING)
        self._tally, self._labels = tally, labels

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._tally.add("faults_total", *self._labels, code_of(record.getMessage()))
        except Exception:
            self.handleError(record)


def code_of(line: str) -> str:
    found = _CODE.match(line)
    return found[1] if found else OTHER


def count_faults(tally: Tally, *labels: str) -> FaultCounter:
    """From now on, all that this process logs. Undone with `logging.getLogger().removeHandler`."""
    counter = FaultCounter(tally, *labels)
    logging.getLogger().addHandler(counter)
    return counter
