"""Memory that Prefect holds for rounds that are tasks, and the choice of rounds that become tasks."""

from types import SimpleNamespace

import pytest
from prefect.transactions import transaction

from tasks import phases
from tasks.phases import RUN_TASKS, _forget_round, rounds_are_tasks


def test_nothing_of_a_round_is_kept_until_the_phase_ends(monkeypatch):
    """Nor is anything of it committed or undone then: a transaction of a round has neither a key nor a hook."""
    flow = SimpleNamespace(task_run_assets={"round": set()})
    monkeypatch.setattr(phases, "FlowRunContext", SimpleNamespace(get=lambda: flow))
    with transaction() as phase:
        for _ in range(3):
            with transaction() as each:
                pass
            assert phase.children == [each] and each.key is None
            assert each.on_commit_hooks == each.on_rollback_hooks == []
            _forget_round()
            assert phase.children == [] and flow.task_run_assets == {}
    assert phase.is_committed()
    monkeypatch.undo()
    _forget_round()  # outside of both there is nothing to forget


@pytest.mark.parametrize(
    ("choice", "rounds", "tasks"),
    [("auto", RUN_TASKS, True), ("auto", RUN_TASKS + 1, False), ("round", 10**9, True), ("phase", 1, False)],
)
def test_rounds_of_a_run_by_itself_are_tasks_while_they_are_few(choice, rounds, tasks):
    assert rounds_are_tasks(choice, rounds, RUN_TASKS) == tasks
