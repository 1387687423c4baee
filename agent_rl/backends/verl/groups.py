"""The trajectories of a step, back from verl's store, as the groups that our statistics and objective know."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from agent_rl.errors import TrainingError
from agent_rl.rollout.groups import Group
from agent_rl.rollout.trajectory import Trajectory
from agent_rl.train.batch import TrainSequence


def gather(fields: Sequence[Mapping[str, Any]], *, min_group: int) -> tuple[list[Group], list[Trajectory]]:
    """Groups in the order of the step's questions, and the trajectory of each row.

    ``fields``: the ``extra_fields`` of each row, as the agent loop sent them. Raises TrainingError where a rollout
    ended in an error that is no failure of infrastructure (a refused token, a bug).
    """
    for field in fields:
        if "fatal" in field:
            error = json.loads(field["fatal"])
            raise TrainingError(f"a rollout ended in {error['type']}: {error['message']}")
    trajectories: list[Trajectory] = [pickle.loads(field["trajectory"]) for field in fields]
    members: dict[int, list[Trajectory]] = {}
    for field, trajectory in zip(fields, trajectories, strict=True):
        members.setdefault(int(field["place"]), []).append(trajectory)
    groups = []
    for place in sorted(members):
        ordered = sorted(members[place], key=lambda trajectory: trajectory.sample)
        group = Group(ordered[0].group, ordered[0].item, ordered)
        group.kept = len(group.scored) >= min_group
        groups.append(group)
    return groups, trajectories


def updates_of_rows(sequences: Sequence[TrainSequence | None], *, updates: int) -> list[int]:
    """Which of ``updates`` optimiser batches each row falls into, all of one size.

    Whole groups, in turn, as the embedded backend deals them; rows that are not trained on fill up.
    """
    places = sorted({sequence.group for sequence in sequences if sequence is not None})
    dealt = {place: index % updates for index, place in enumerate(places)}
    room = [len(sequences) // updates] * updates
    found = [-1] * len(sequences)
    for row, sequence in enumerate(sequences):
        if sequence is not None:
            found[row] = dealt[sequence.group]
            room[found[row]] -= 1
    assert min(room) >= 0, "an optimiser batch was dealt more rows than it has"
    for row, sequence in enumerate(sequences):
        if sequence is None:
            found[row] = next(update for update, left in enumerate(room) if left)
            room[found[row]] -= 1
    return found
