"""Who waits is told what is new, and no more than twice a second."""

from inference.scheduling.line import Place
from inference.serving.queue_news import QueueNews


def told(news, now, *places):
    return [(one.request_id, one.position, one.reason, one.eta_ms) for one in news.of(lambda: places, now)]


def test_only_what_changes():
    news = QueueNews()
    a, b = Place("a", 0, "no_seat", None), Place("b", 1, "behind", None)
    assert told(news, 10.0, a, b) == [a, b]
    assert told(news, 10.6, a, b) == []
    b = Place("b", 0, "no_seat", None)
    assert told(news, 11.2, b) == [b]
    assert told(news, 11.8, a, b) == [a], "it waits again"


def test_twice_a_second_at_most():
    news = QueueNews()
    assert told(news, 10.0, Place("a", 3, "behind", None))
    assert told(news, 10.4, Place("a", 2, "behind", None)) == []
    assert told(news, 10.5, Place("a", 2, "behind", None)) == [("a", 2, "behind", None)]


def test_an_estimate_that_comes_true_is_no_news():
    news = QueueNews()
    told(news, 10.0, Place("a", 3, "behind", 10_000.0))
    assert told(news, 11.0, Place("a", 3, "behind", 9_000.0)) == []
    assert told(news, 12.0, Place("a", 3, "behind", 7_700.0)) == [], "near enough"
    assert told(news, 13.0, Place("a", 3, "behind", 4_000.0)) == [("a", 3, "behind", 4_000.0)]
    assert told(news, 14.0, Place("a", 3, "behind", None)) == [("a", 3, "behind", None)]
    assert told(news, 15.0, Place("a", 3, "behind", 0.0)) == [("a", 3, "behind", 0.0)]
