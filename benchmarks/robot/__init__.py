"""What the robot's promises are worth, measured on simulated hardware.

python -m benchmarks.robot task      a trained bundle through the servo protocol and in its task
python -m benchmarks.robot faults    the failure matrix: one process on one clock, and all of them
python -m benchmarks.robot soak      the control loop under random faults for a million ticks
python -m benchmarks.robot timing    deadlines, overhead, inference's latency; needs a quiet machine
python -m benchmarks.robot bus       the servo bus by itself
python -m benchmarks.robot page      benchmarks/results/robot/README.md of all their results

Each takes key=value, see its file, writes benchmarks/results/robot/<name>.json and makes the page.
"""

from pathlib import Path

RESULTS = Path("benchmarks/results/robot")
