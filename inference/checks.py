"""Checks of single values that come from outside, each with the sentence that a person gets.

Knows: types and ranges. Must not know: which parameters or settings there are. A check takes the name for its sentence
and the value, gives the value in its proper type and raises ParameterError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ParameterError(ValueError):
    """A setting or sampling parameter is wrong. The message says which, what it was, and what is allowed."""


Check = Callable[[str, Any], Any]


def integer(low: int, high: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ParameterError(f"{name} must be a whole number, not {shown(value)}")
        if not low <= value <= high:
            raise ParameterError(f"{name} is {shown(value)}; it must be from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ParameterError(f"{name} must be a number, not {shown(value)}")
        if not low <= value <= high:  # nor is NaN, nor an int that no float can hold
            raise ParameterError(f"{name} is {shown(value)}; it must be from {low:g} to {high:g}")
        return float(value)

    return check


def above(low: float, high: float) -> Callable[[str, Any], float]:
    """A number that must be more than `low`."""
    in_range = number(low, high)

    def check(name: str, value: Any) -> float:
        result = in_range(name, value)
        if result == low:
            raise ParameterError(f"{name} is {value}; it must be more than {low:g}, and at most {high:g}")
        return result

    return check


def optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be true or false, not {shown(value)}")
    return value


def choice(*allowed: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise ParameterError(f"{name} is {shown(value)}; it must be one of: {', '.join(allowed)}")
        return value

    return check


def strings(most: int, longest: int) -> Callable[[str, Any], tuple[str, ...]]:
    """One string or several, none of them empty; None for none."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(s, str) for s in items):
            raise ParameterError(f"{name} must be a string or a list of strings, not {shown(value)}")
        if len(items) > most:
            raise ParameterError(f"{name} has {len(items)} strings; at most {most} are allowed")
        for item in items:
            if not 1 <= len(item) <= longest:
                raise ParameterError(f"a {name} string has {len(item)} characters; it must have 1 to {longest}")
        return tuple(items)

    return check


def token_ids(most: int, limit: int) -> Callable[[str, Any], tuple[int, ...]]:
    one = integer(0, limit - 1)

    def check(name: str, value: Any) -> tuple[int, ...]:
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise ParameterError(f"{name} must be a list of at most {most} token ids, not {shown(value)}")
        return tuple(one(name, item) for item in value)

    return check


def shown(value: Any) -> str:
    """A value as a sentence may quote it: never long, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, lists a thousand deep
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 40 else text[:37] + "..."
