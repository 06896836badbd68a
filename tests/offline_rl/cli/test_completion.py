"""What a shell offers after TAB."""

import shutil
import subprocess

import pytest

from offline_rl.cli.completion import BASH, candidates
from offline_rl.cli.main import main, verbs


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("offline-rl tra", ["train"]),
        ("offline-rl nothing se", []),
        ("offline-rl train see", ["seeds="]),
        ("offline-rl train algorithm=td3", ["td3", "td3_bc"]),
        ("offline-rl train tracker=", ["tensorboard", "wandb", "none"]),
        ("offline-rl train d4rl_compatible=t", ["true"]),
        ("offline-rl train algorithm=iql algorithm.exp", ["algorithm.expectile="]),
        ("offline-rl train algorithm=iql algorithm.decay_actor_lr=", ["false", "true"]),
        ("offline-rl train experiment=dem", ["demo"]),
        ("offline-rl train wandb.pro", ["wandb.project="]),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert candidates(line, verbs()) == expected


def test_a_key_is_offered_where_a_word_begins() -> None:
    assert {"episodes=", "run=", "task="} <= {*candidates("offline-rl evaluate ", verbs())}


def test_bash_reads_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", "bash"]) == 0
    assert capsys.readouterr().out.strip() == BASH
    assert main(["--completion", "fish"]) == 2
    if bash := shutil.which("bash"):
        script = f"{BASH}\noffline-rl() {{ echo out=; }}\nCOMP_LINE='offline-rl x' COMP_POINT=12"
        done = subprocess.run(
            [bash, "-c", f"{script}\n_offline_rl 2>/dev/null; echo ${{COMPREPLY[0]}}"],
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == "out="
