"""The number of threads of a decode step: one while another program has a core, all otherwise."""

from collections.abc import Callable, Iterable

from viz_engine.engine.kernels.threads import FIRST_HOLD, LONGEST_HOLD, Threads

MS = 1_000_000


class Machine:
    """Steps that take what is said, on a clock that only they move."""

    def __init__(self, every_ms: float, one_ms: float) -> None:
        self.ms = {2: every_ms, 1: one_ms}
        self.now = 0
        self.num = 2
        self.set_to: list[int] = []
        self.threads = Threads(2, self.use)

    def use(self, num: int) -> None:
        self.num = num
        self.set_to.append(num)

    def clock(self) -> int:
        return self.now

    def step(self) -> None:
        self.now += int(self.ms[self.num] * MS)

    def measure(self) -> tuple[float, float]:
        return self.threads.measure(1, self.step, self.clock)

    def run(self, num_steps: int) -> list[int]:
        """The threads that each step took."""
        took = []
        for _ in range(num_steps):
            start = self.now
            with self.threads.step():
                took.append(self.num)
                self.step()
            self.threads.took(1, self.now - start)
        return took


def play(machine: Machine, changes: Iterable[tuple[int, Callable[[Machine], None]]]) -> list[int]:
    took = []
    for num_steps, change in changes:
        change(machine)
        took += machine.run(num_steps)
    return took


def quiet(machine: Machine) -> None:
    machine.ms = {2: 40, 1: 60}


def busy(machine: Machine) -> None:
    machine.ms = {2: 200, 1: 70}


def crowded(machine: Machine) -> None:
    machine.ms = {2: 200, 1: 190}


def test_a_quiet_machine_never_leaves_all_threads() -> None:
    machine = Machine(40, 60)
    assert machine.measure() == (40 * MS, 60 * MS)
    machine.set_to.clear()
    assert set(machine.run(500)) == {2} and machine.set_to == []


def test_two_slow_steps_in_a_row_go_over_to_one_thread() -> None:
    machine = Machine(40, 60)
    machine.measure()
    assert play(machine, [(10, quiet), (10, busy)]) == [2] * 12 + [1] * 8
    assert machine.num == 2, "between the steps all threads are there again"


def test_a_single_slow_step_changes_nothing() -> None:
    machine = Machine(40, 60)
    machine.measure()
    assert set(play(machine, [(5, quiet), (1, busy), (5, quiet), (1, busy), (5, quiet)])) == {2}


def test_all_threads_are_tried_again_at_growing_distances_and_kept_when_it_is_quiet() -> None:
    machine = Machine(40, 60)
    machine.measure()
    took = play(machine, [(2 + FIRST_HOLD + 1 + 2 * FIRST_HOLD + 1, busy)])
    assert took == [2, 2] + [1] * FIRST_HOLD + [2] + [1] * 2 * FIRST_HOLD + [2]
    for _ in range(3):
        machine.run(LONGEST_HOLD + 1)
    assert machine.run(2 * LONGEST_HOLD + 2).count(2) == 2
    quiet(machine)
    machine.run(LONGEST_HOLD + 1)
    assert set(machine.run(20)) == {2}
    assert play(machine, [(FIRST_HOLD + 3, busy)]) == [2, 2] + [1] * FIRST_HOLD + [2]


def test_where_one_thread_is_no_better_all_are_used() -> None:
    machine = Machine(40, 60)
    machine.measure()
    took = play(machine, [(200, crowded)])
    assert took.count(1) == 2, "as long a context, or every core taken: learnt once"


def test_a_machine_that_is_busy_at_the_start_starts_with_one_thread() -> None:
    machine = Machine(200, 70)
    machine.measure()
    assert set(machine.run(FIRST_HOLD)) == {1}
    machine.measure()
    machine.threads.new_run()
    assert machine.run(3) == [2, 1, 1], "a new run asks again, with one step"


def test_without_a_measurement_nothing_is_switched() -> None:
    machine = Machine(200, 70)
    assert set(machine.run(20)) == {2}


def test_an_error_in_a_step_puts_the_threads_back() -> None:
    machine = Machine(200, 70)
    machine.measure()
    try:
        with machine.threads.step():
            raise RuntimeError
    except RuntimeError:
        pass
    assert machine.num == 2
