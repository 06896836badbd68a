"""The state machine on the page is that of the code."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_draws_the_states_of_this_code():
    made = runpy.run_path(str(ROOT / "docs" / "generate" / "robot.py"))
    found = (ROOT / "docs" / "robot.md").read_text()
    assert found == made["page"](found), "run python docs/generate/robot.py"
    for name in ("RUNNING --> SOFT_STOP", "SOFT_STOP --> HOLD: standstill", "| WORKSPACE |"):
        assert name in found
