"""Shell completion."""

import shutil
import subprocess

import pytest

from offline_rl.cli.completion import SCRIPTS, candidates
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
        ("offline-rl train task=gym/hopper-medium-e", ["gym/hopper-medium-expert"]),
        ("offline-rl evaluate device=c", ["cpu", "cuda"]),
        ("offline-rl data c", ["check", "convert"]),
        ("offline-rl robot re", ["record", "replay"]),
        ("offline-rl data check max_", ["max_episode_steps="]),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert candidates(line, verbs()) == expected


def test_a_key_is_offered_where_a_word_begins() -> None:
    assert {"episodes=", "run=", "task="} <= {*candidates("offline-rl evaluate ", verbs())}


TRIALS = {  # code before and after the script: stubs, and a word to complete
    "bash": (
        "",
        "COMP_LINE='offline-rl x' COMP_POINT=12; _offline_rl 2> /dev/null; echo $COMPREPLY",
    ),
    "zsh": (
        "compdef() { :; }; compset() { :; }\n"
        "compadd() { [[ $1 == -S ]] && shift 2; shift; print -l $@; }",
        "words=(offline-rl x); CURRENT=2; PREFIX=x; _offline_rl",
    ),
}


@pytest.mark.parametrize("name", TRIALS)
def test_a_shell_can_run_the_completion_script(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--completion", name]) == 0
    script = capsys.readouterr().out
    assert script.strip() == SCRIPTS[name]
    if shell := shutil.which(name):
        first, last = TRIALS[name]
        lines = [first, "offline-rl() { echo out=; }", script, last]
        done = subprocess.run([shell, "-c", "\n".join(lines)], capture_output=True, text=True)
        assert done.stdout.split() == ["out="]
    assert main(["--completion", "fish"]) == 2
