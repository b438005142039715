"""What one would write by hand: json and dicts, for the largest staleness and the number of violations only."""

import json
import sys

oldest: dict[str, int] = {}
v_train: dict[int, int] = {}
uses: list[tuple[str, int]] = []
with open(sys.argv[1]) as log:
    bound = json.loads(next(log))["bound"]
    for line in log:
        event = json.loads(line)
        kind = event["kind"]
        if kind == "span":
            trajectory, version = event["trajectory_id"], event["version"]
            if trajectory not in oldest or version < oldest[trajectory]:
                oldest[trajectory] = version
        elif kind == "trained":
            uses.append((event["trajectory_id"], event["step"]))
        elif kind == "step":
            v_train[event["step"]] = event["version"]
staleness = [v_train[step] - oldest[trajectory] for trajectory, step in uses]
print(max(staleness), sum(value > bound for value in staleness))
