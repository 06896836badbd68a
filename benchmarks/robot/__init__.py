"""Measurements of the robot's control, safety and timing on simulated hardware.

python -m benchmarks.robot first     the first run of docs/robot.md, to ten targets
python -m benchmarks.robot task      trained policies on simulated servos and in the environment
python -m benchmarks.robot faults    failure matrix, in one process and with all processes
python -m benchmarks.robot alarms    false alarms of the stuck-sensor check
python -m benchmarks.robot soak      the control loop under random faults for a million ticks
python -m benchmarks.robot timing    deadlines, overhead and latency; needs an idle machine
python -m benchmarks.robot bus       the servo bus alone
python -m benchmarks.robot page      benchmarks/results/robot/README.md from all results

Each measurement has key=value options, which its file lists. It writes
benchmarks/results/robot/<name>.json and updates the page.
"""

from pathlib import Path

RESULTS = Path("benchmarks/results/robot")
