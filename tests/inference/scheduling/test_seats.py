"""Seats are taken from the lowest on, whatever the order in which they were given back."""

from __future__ import annotations

import pytest

from inference.scheduling.seats import Seats


def test_the_lowest_free_seat_is_taken_first() -> None:
    seats = Seats(5)
    assert [seats.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    for seat in (4, 1, 3, 0):
        seats.give_back(seat)
    assert [seats.take() for _ in range(4)] == [0, 1, 3, 4]
    with pytest.raises(IndexError):
        seats.take()


def test_idle_seats_are_free_when_the_batch_has_ended() -> None:
    seats = Seats(4)
    for _ in range(4):
        seats.take()
    seats.give_back(3)
    seats.give_back(2, idle=True)
    seats.give_back(0, idle=True)
    assert (seats.idle, seats.take(), seats.free_count) == ([2, 0], 3, 0)
    seats.free_idle()
    assert (seats.idle, seats.take(), seats.take()) == ([], 0, 2)


def test_fewer_seats_and_more_again() -> None:
    seats = Seats(5)
    for _ in range(5):
        seats.take()
    for seat in (1, 4, 2):
        seats.give_back(seat, idle=True)
    seats.resize(3, taken=[0], most_idle=1)
    assert (seats.count, seats.idle, seats.free_count, seats.take()) == (3, [1], 1, 2)
    seats.resize(5, taken=[0, 2], most_idle=5)
    assert (seats.idle, [seats.take() for _ in range(2)], seats.free_count) == ([1], [3, 4], 0)
