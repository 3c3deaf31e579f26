"""When an engine counts as hung: it has work and does not step, or it is silent; and when it does not."""

from dataclasses import replace

from inference.serving.messages import EngineStatus
from playground.watchdog import EXPIRY, LEAST, LOADING, Watchdog

HANG = 10.0
COSTS = {"fixed": 5.0, "token": 0.1, "observed": 40.0}
IDLE = EngineStatus("e", 7, "ready", False, 1000.0, costs=COSTS, settings={"max_num_batched_tokens": 512})
BUSY = replace(IDLE, busy=True)
LOADS = replace(IDLE, state="loading", costs={})


def judged(looks, hang_timeout=HANG):
    """Verdicts of looks: (moment, heartbeat or None, whether the process is stopped)."""
    watchdog = Watchdog(hang_timeout)
    return [bool(watchdog.judge(now, status, stopped)) for now, status, stopped in looks]


def every_half_second(seconds, status, start=0.0, stopped=False):
    return [(start + n / 2, status, stopped) for n in range(int(2 * seconds) + 1)]


def test_idle_is_never_hung():
    assert not any(judged(every_half_second(100, IDLE)))


def test_one_slow_step_of_eight_seconds_is_no_alarm():
    looks = every_half_second(8, BUSY) + every_half_second(8, replace(BUSY, progress_at=1008.0), start=8.5)
    assert not any(judged(looks))


def test_work_without_progress_is_hung_after_the_limit():
    verdicts = judged(every_half_second(11, BUSY))
    assert verdicts.index(True) == 21  # the first look after 10 s
    assert Watchdog(HANG).judge(0.0, BUSY) == ""


def test_a_clock_that_is_set_is_no_alarm():
    """progress_at is long ago by the wall clock; it is its change that counts."""
    assert judged([(0.0, replace(BUSY, progress_at=1.0), False), (1.0, replace(BUSY, progress_at=1.5), False)]) == [
        False,
        False,
    ]


def test_a_machine_on_which_iterations_take_long():
    slow = replace(BUSY, costs={"fixed": 1000.0, "token": 20.0, "observed": 3.0})  # 11 s for 512 tokens
    assert not any(judged(every_half_second(33, slow)))
    assert any(judged(every_half_second(35, slow)))


def test_the_first_iteration_may_compile_kernels():
    first = replace(BUSY, costs={"observed": 0})
    assert not any(judged(every_half_second(LOADING, first)))
    assert any(judged(every_half_second(LOADING + 1, first)))


def test_silence():
    """The broker forgets a heartbeat after 3 s, so 10 s without one are 7 s without its key."""
    looks = [(0.0, BUSY, False), *every_half_second(8, None, start=0.5)]
    verdicts = judged(looks)
    assert verdicts.index(True) == 1 + 2 * (HANG - EXPIRY) + 1
    assert not any(judged([(0.0, BUSY, False), *every_half_second(LEAST, None, start=0.5)], hang_timeout=0.5))


def test_silence_of_a_process_that_was_stopped():
    looks = [(0.0, BUSY, False), (0.5, BUSY, True), (1.0, None, True)]
    assert judged(looks) == [False, False, True]


def test_silence_while_a_model_is_loaded():
    assert not any(judged([(0.0, LOADS, False), *every_half_second(LOADING, None, start=0.5)]))
    assert not any(judged(every_half_second(LOADING, None)))
    assert any(judged(every_half_second(LOADING + 1, None)))


def test_a_broker_that_is_away_is_no_silence():
    watchdog = Watchdog(HANG)
    watchdog.judge(0.0, BUSY)
    watchdog.unknown()
    assert watchdog.judge(60.0, None) == ""
    watchdog.unknown()
    assert watchdog.judge(120.0, BUSY) == ""
