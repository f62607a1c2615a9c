"""`bench --live`: its arithmetic on marks that are known. The measuring itself is run by hand."""

from viz_engine.bench import live


def test_an_event_is_on_the_screen_with_the_first_frame_that_shows_it() -> None:
    marks = [
        ["frame", 3, 1000.0],  # arrived, not yet drawn
        ["drawn", 2, 1010.0],
        ["drawn", 4, 1030.0],
    ]
    stamps = {"1": 1000.0, "2": 1005.0, "3": 1020.0}
    result = live._delays(marks, [1000.0, 1010.0, 1020.0], stamps)
    assert result["events"] == 3 and result["events_missing"] == 0
    assert result["event_to_pixel_p50_ms"] == 10.0  # of 10, 25, 10
    assert result["fps"] == 100.0


def test_an_event_that_never_reaches_the_screen_is_counted() -> None:
    result = live._delays([["drawn", 2, 10.0]], [0.0, 10.0], {"0": 0.0, "1": 5.0, "2": 9.0})
    assert result["events_missing"] == 1


def test_targets_have_a_side() -> None:
    assert live._met("fps", 60.0) and not live._met("fps", 50.0)
    assert live._met("event_to_pixel_p95_ms", 20.0)
    assert not live._met("event_to_pixel_p95_ms", 51.0)
