"""Which tests may be retried, and which may be skipped in CI.

`conftest.py` applies both tables; `tests/house/test_policy.py` limits them.
"""

import os
from typing import TypeVar

import pytest

# Hypothesis draws new examples in a soak, and in the run of `make test` whose seed is derived from the commit.
RANDOM_EXAMPLES = bool(os.environ.get("PENSTOCK_SOAK") or os.environ.get("PENSTOCK_SEED"))

# Tests that race real processes (kill, signal, take over).  Each is retried once, and pytest prints the retry.
# Every other test fails at its first failure.  `make soak` retries nothing.
RACING = {
    "tests/store/test_faults_kill.py::test_killed_at_random_moments": "kills a builder at a random moment",
    "tests/store/test_faults_kill.py::test_killed_again_and_again": "kills builders at random moments",
    "tests/store/test_faults_kill.py::test_killed_at_every_change_it_makes_on_disk": "kills a traced builder",
    "tests/store/test_faults_errno.py::test_every_call_may_fail": "injects errors into a traced builder",
    "tests/store/test_faults_errno.py::test_a_disk_that_stays_bad": "injects errors into a traced builder",
    "tests/store/test_faults_errno.py::test_signals_do_not_disturb": "sends signals at random moments",
    "tests/store/test_interrupt.py::test_ctrl_c_says_how_to_go_on": "sends Ctrl-C to a running build",
    "tests/store/test_interrupt.py::test_without_a_cache_nothing_stays_after_ctrl_c_and_little_after_a_kill": "kills a build",
    "tests/store/test_many_builders.py::test_eight_builders_of_one_store": "starts eight builders at once",
    "tests/store/test_many_builders.py::test_the_work_of_a_killed_builder_is_taken_over": "kills one of several builders",
    "tests/store/test_dead_worker.py::test_a_dead_worker_is_an_error_that_names_the_shard": "kills a worker",
    "tests/store/test_claims.py::test_eight_builders_share_the_work": "starts eight builders at once",
    "tests/store/test_claims.py::test_a_killed_builder_s_shards_are_made_by_the_others": "kills one of several builders",
    "tests/store/test_prune.py::test_readers_and_a_pruner_at_once_never_meet_a_missing_file": "readers beside a pruner",
    "tests/store/test_background.py::test_a_script_that_ends_early_ends_cleanly": "ends a script in the middle of a build",
    "tests/journeys/test_kill_and_resume.py::test_killed_jobs_together_train_one_epoch": "kills jobs",
    "tests/journeys/test_processes.py::test_sigterm_to_all_processes_leaves_a_state_that_can_be_saved": "signals a job",
    "tests/journeys/test_processes.py::test_a_worker_that_dies_is_an_error": "kills a worker",
    "tests/journeys/test_ranks.py::test_killed_again_and_again_with_other_ranks_they_train_one_epoch": "kills ranks",
    "tests/journeys/test_ranks.py::test_ranks_that_disagree_fail_in_seconds_and_name_the_field": "several ranks",
    "tests/journeys/test_ranks.py::test_a_bare_loop_under_torchrun_is_restarted_and_goes_on_with_fewer_ranks": "kills ranks",
    "tests/engines/test_local.py::test_a_dead_worker_is_an_error_that_names_its_task": "kills a worker",
    "tests/engines/test_local.py::test_a_stopped_worker_is_ended_too": "stops a worker with a signal",
    "tests/engines/test_scripts.py::test_workers_end_with_their_parent": "kills the parent of workers",
    "tests/engines/test_scripts.py::test_ctrl_c_reaches_only_the_parent_who_ends_the_workers_tidily": "sends Ctrl-C",
    "tests/engines/test_scripts.py::test_sigterm_to_the_group_is_the_parents_to_answer": "sends SIGTERM",
    "tests/loader/test_workers.py::test_a_job_that_ends_in_the_middle_does_not_wait_for_its_workers": "ends a job",
    "tests/loader/test_workers.py::test_workers_go_with_their_owner_and_not_by_the_word_of_others": "signals workers",
    "tests/extras/trainers/test_trainers.py::test_killed_and_resumed_it_trains_the_same_batches": "kills a trainer",
    "tests/extras/trainers/test_trainers.py::test_the_trainer_on_two_ranks_is_killed_and_goes_on_with_one": "kills ranks",
    "tests/extras/ray/test_engine.py::test_the_command_prepares_on_a_cluster": "Ray starts a server for it",
    "tests/extras/ray/test_engine.py::test_a_node_is_killed": "kills a node of a cluster",
    "tests/extras/ray/test_engine.py::test_a_run_waits_for_a_node_that_joins_and_gives_up_when_the_last_one_is_gone": "kills a node",
    "tests/extras/ray/test_engine.py::test_a_driver_that_is_killed_or_interrupted_leaves_no_actors_and_the_next_run_completes": "kills it",
    "tests/extras/ray/test_engine.py::test_a_task_that_always_kills_its_worker_is_an_error_that_names_it": "kills workers",
    "tests/extras/ray/test_prompts.py::test_every_prompt_is_trained_once_though_a_worker_and_the_owner_are_killed": "kills actors",
    "tests/extras/ray/test_train.py::test_the_example_trains_the_rows_of_an_untouched_run": "kills a worker of Ray Train",
    "tests/cli/test_commands.py::test_ctrl_c_says_how_far_it_came_and_the_same_command_goes_on": "sends Ctrl-C to a command",
}

# Tests that run in one process, because they share what takes long to make: a cluster, or the results of a job.
TOGETHER = (
    "tests/extras/ray/",
    "tests/extras/rl/test_grpo.py",
    "tests/extras/trainers/test_refusals.py",
    "tests/extras/trainers/test_starts.py",
    "tests/extras/rl/test_skyrl.py",
    "tests/templates/test_hostile_templates.py",
)

# Reasons for which CI may skip a test.  A skip with any other reason fails the run where CI is set.
ALLOWED_SKIPS = {
    "strace is not installed": "a Debian package; it makes single system calls fail or kills a process at one of them",
    "no browser": "chromium is a Debian package; it opens the report page as a user would",
    "azurite is not installed": "Azure's emulator is a package of npm; a cache in Azure is read and written there",
    "no right to mount": "a sandbox may forbid mounts; a small disk is mounted to run out of space",
    "no small disk can be mounted": "a sandbox may forbid mounts; a small disk is mounted to run out of space",
    "only root can become another user": "tests of other users' files need a second user",
    "PENSTOCK_REAL_DATA is not set": "real tokenizers and conversations are not part of the repository",
}

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def fail_unlisted_skip(report: Report) -> Report:
    """Turn a skip into a failure where CI is set, unless its reason is listed above."""
    if not (report.skipped and os.environ.get("CI")) or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(allowed in reason for allowed in ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped in CI: {reason}\nInstall what it needs, or list the reason in tests/policy.py"
    return report
