"""json and the smallest version of each list."""

import json
import sys

oldest: dict[str, int] = {}
with open(sys.argv[1]) as log:
    for line in log:
        event = json.loads(line)
        if event.get("kind") == "span":
            lowest = min(event["versions"])
            oldest[event["trajectory_id"]] = min(lowest, oldest.get(event["trajectory_id"], lowest))
print(len(oldest), min(oldest.values()))
