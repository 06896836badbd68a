"""Damaged per-task tables: the error names the file, the row and the fault."""

from pathlib import Path

import pytest

from offline_rl.algorithms.common import registry
from offline_rl.utils.errors import UserError


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tuned: {", "not readable as YAML"),
        ("- tuned", "YAML|lines of the form name: value are expected"),
        ("tunedd: {}", "unknown key 'tunedd'; did you mean tuned"),
        ("tuned: 3", "tuned is 3"),
        ("parity: [bf16]", r"parity is \['bf16'\]"),
        ("tuned: {hopper-*: 3}", "hopper-.*: 3 must map names to values"),
        ("tuned: {3: {beta: 1.0}}", "3: .* must map names to values"),
        ("tuned: {hopper-*: {betta: 1.0}}", "hopper-.*: .*betta'; did you mean .*beta"),
        ("tuned: {hopper-*: {beta: high}}", "hopper-.*: beta='high': expected a number"),
        ("tuned: {hopper-*: {beta: -1.0}}", "hopper-.*: beta=-1.0 is not at least 0"),
    ],
)
def test_a_damaged_table_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    monkeypatch.setattr(registry, "share", lambda _: tmp_path)
    path = tmp_path / "algorithm" / "iql.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UserError, match=fault) as error:
        registry.algorithm_config("iql", "hopper-medium-v2", {"beta": 3.0})
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
