"""The generated parts of docs/robot.md are up to date."""

from pathlib import Path

from docs.generate import robot

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_draws_the_states_of_this_code():
    found = (ROOT / "docs" / "robot.md").read_text()
    assert found == robot.page(found), "run python -m docs.generate.robot"
    for name in ("RUNNING --> SOFT_STOP", "SOFT_STOP --> HOLD: standstill", "| WORKSPACE |"):
        assert name in found
