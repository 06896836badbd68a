"""Runs with damaged files resume to the same result, or are refused with one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from printed import report
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_data import save_small

from offline_rl.runs.folder import Done, SeedFolder, common_checkpoint
from offline_rl.runs.start import start_of
from offline_rl.trained import load
from offline_rl.training.train import finetune, train
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json

KEYS: dict[str, Any] = {"algorithm": "bc", "task": "neorl2/DMSD", "seeds": 2, "num_updates": 40}
KEYS |= {"eval_every": 20, "checkpoint_every": 20, "eval_episodes": 1, "tracker": "none"}
KEYS |= {"compile": "never", "algorithm.hidden": [8], "batch_size": 8, "device": "cpu"}
KEYS |= {"show": False, "precision": "fp32"}
MIDDLE, END = Done(updates=20), Done(updates=40)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Options of a finished run of two seeds, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    keys = KEYS | {"dataset": str(save_small(folder / "small.npz"))}
    return keys, train(**keys, out=str(folder / "out")).path


@pytest.fixture
def unfinished_run(
    finished_run: tuple[dict[str, Any], Path], tmp_path: Path
) -> tuple[dict[str, Any], Path]:
    """Copy of the finished run without results, as if it was killed before writing them."""
    keys, path = finished_run
    shutil.copytree(path.parents[2], tmp_path / "out")
    run = tmp_path / "out" / path.relative_to(path.parents[2])
    for name in ("result.json", "policy.bundle"):
        for file in run.rglob(name):
            file.unlink()
    return keys | {"out": str(tmp_path / "out")}, run


def flip(path: Path, place: int = -8) -> None:
    """Flip one bit; by default in the last bytes of a tensor."""
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(bytes(content))


def equal_results(run: Path, other: Path) -> bool:
    """Return True if both runs have equal parameters, returns and numbers of evaluations."""
    for seed in (0, 1):
        a, b = SeedFolder(run, seed), SeedFolder(other, seed)
        one, two = (load_file(f.checkpoints()[END]) for f in (a, b))
        assert one.keys() == two.keys()
        assert all((one[name] == two[name]).all() for name in one)
        assert read_json(a.result)["returns"] == read_json(b.result)["returns"]
    return True


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    finished_run, unfinished_run, capsys
):
    keys, run = unfinished_run
    newest = SeedFolder(run, 1).checkpoints()[END]
    flip(newest)
    assert equal_results(train(**keys).path, finished_run[1])
    said = capsys.readouterr().out
    assert f"{newest} is damaged" in said
    assert "seed_0/checkpoints" not in said
    assert (run / "seed_0" / "evaluations.jsonl").read_text().count("\n") == 3


def test_seeds_killed_between_their_first_checkpoints_restart_together(
    finished_run, unfinished_run, capsys
):
    """The seeds are stacked again, because a single one may round differently."""
    keys, run = unfinished_run
    for seed, kept in ((0, MIDDLE), (1, None)):
        for done, path in SeedFolder(run, seed).checkpoints().items():
            if done != kept:
                path.unlink()
    assert equal_results(train(**(keys | {"show": True})).path, finished_run[1])
    assert capsys.readouterr().out.count("All seeds restart at update 0") == 1
    assert read_json(run / "seed_0" / "result.json")["seeds_stacked"] == 2


def test_without_an_intact_checkpoint_nothing_is_trained_or_written(unfinished_run, capsys):
    keys, run = unfinished_run
    for path in SeedFolder(run, 0).checkpoints().values():
        path.write_bytes(path.read_bytes()[:-1])
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="no checkpoint can be resumed") as error:
        train(**keys)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out.count("is damaged") == 2
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def edit(metadata: dict[str, str], **changes: Any) -> dict[str, str]:
    progress = json.loads(metadata["progress"]) | changes
    return metadata | {"progress": json.dumps(progress)}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: edit(m, evaluated=0),
        lambda m: edit(m, choices={"precision": "bf16", "compile": False, "threads": 1}),
        lambda m: m | {"format": "2"},
        lambda m: m | {"format": "9"},
        lambda m: {"format": "3", "progress": m["progress"]},
        lambda m: {"format": "3"},
        lambda m: m | {"progress": "{"},
        lambda m: None,
    ],
)
def test_the_checksum_covers_all_content_of_a_checkpoint(
    unfinished_run, change: Callable[[dict], dict | None]
):
    _, run = unfinished_run
    folder = SeedFolder(run, 0)
    path = folder.checkpoints()[END]
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, change(metadata))
    with pytest.raises(UserError, match=path.name):
        folder.load(END)
    assert common_checkpoint([folder, SeedFolder(run, 1)]) == MIDDLE


def test_a_checkpoint_of_another_run_is_refused(unfinished_run):
    keys, run = unfinished_run
    for seed in (0, 1):
        folder = SeedFolder(run, seed)
        tensors, progress = folder.load(END)
        del tensors["counters/seed"]
        folder.save(END, tensors, progress)
    with pytest.raises(UserError, match=r"of another run: .*counters/seed"):
        train(**keys)


def test_a_damaged_environment_file_is_written_again(finished_run, unfinished_run, capsys):
    keys, run = unfinished_run
    path = run / "seed_0" / "environment.json"
    path.write_text("[]")
    assert equal_results(train(**keys).path, finished_run[1])
    assert f"{path} holds a list" in capsys.readouterr().out
    told, other = (read_json(run / f"seed_{s}" / "environment.json") for s in (0, 1))
    assert told["choices"] == other["choices"]


def lose(path: Path, *_: Any) -> None:
    path.unlink()


def cut(path: Path, lines: list[str]) -> None:
    """Cut the end of the last line and half of the one before it."""
    lines[-2] = lines[-2][: len(lines[-2]) // 2]
    path.write_text("\n".join(lines)[:-3])


def test_finetuning_skips_a_damaged_checkpoint(finished_run, unfinished_run, capsys):
    """`load` skips it too, as fine-tuning and distillation do."""
    _, run = unfinished_run
    newest = SeedFolder(run, 1).checkpoints()[END]
    flip(newest)
    start, _ = start_of(run)
    assert start.updates == MIDDLE.updates
    assert f"{newest} is damaged" in capsys.readouterr().out
    assert (load(run, seed=0).updates, load(run, seed=1).updates) == (40, 20)
    with pytest.raises(UserError, match="no seed 7"):
        start_of(run, [7])


def test_checkpoints_of_another_version_are_refused_by_name(unfinished_run, capsys):
    """The error names the newest checkpoint, a line is printed for each; nothing is written."""
    _, run = unfinished_run
    files = list(SeedFolder(run, 0).checkpoints().values())
    for path in files:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() | {"format": "9"}
        save_file(load_file(path), path, metadata)
    with pytest.raises(UserError) as error:
        finetune(run=run, algorithm="td3", num_env_steps=5)
    told, said = str(error.value), capsys.readouterr().out.splitlines()
    assert "\n" not in told
    assert f"{files[-1]} is of another version" in told
    assert "continue with that version" in told
    assert "copy" not in told
    for path in files:
        assert [line for line in said if str(path) in line and "version" in line]
    assert not (run.parents[1] / "td3").exists()


@pytest.mark.parametrize("damage", [lose, cut])
@pytest.mark.parametrize("name", ["evaluations", "metrics"])
def test_lost_lines_of_logs_do_not_change_the_result(
    finished_run, unfinished_run, capsys, name: str, damage
):
    """The last evaluation, whose line is lost, is repeated. The other lines are unchanged."""
    keys, run = unfinished_run
    path = run / "seed_1" / f"{name}.jsonl"
    before = path.read_text().splitlines()
    damage(path, [*before])
    assert equal_results(train(**keys).path, finished_run[1])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if name == "evaluations":
        assert rows[-1]["returns"] == json.loads(before[-1])["returns"]
    if damage is cut:
        place = len(before) - 1
        assert f"{path}: line {place} is damaged and is removed" in capsys.readouterr().out
        assert rows[: place - 1] == [json.loads(line) for line in before[: place - 1]]
    other = run / "seed_0" / "evaluations.jsonl"
    assert [json.loads(line)["updates"] for line in other.read_text().splitlines()] == [0, 20, 40]


@pytest.mark.parametrize("content", [None, "", "[]", '{"name": "other"}', "\udcff"])
def test_a_run_without_a_valid_config_is_not_resumed(unfinished_run, content: str | None):
    keys, run = unfinished_run
    path = run / "seed_0" / "config.json"
    path.unlink()
    if content is not None:
        path.write_text(content, errors="surrogateescape")
    with pytest.raises(UserError, match=r"config\.json|was started with") as error:
        train(**keys)
    assert "\n" not in str(error.value)


def test_a_damaged_result_is_refused_and_recreated_after_its_removal(finished_run, unfinished_run):
    keys, run = unfinished_run
    train(**keys)
    path = run / "seed_0" / "result.json"
    for content in ("", "[]", "{}", '{"score": "high", "mean_return": 1.0}'):
        path.write_text(content)
        with pytest.raises(UserError, match=r"result\.json.*Remove it; repeating the command"):
            train(**keys)
    path.unlink()
    assert equal_results(train(**keys).path, finished_run[1])


def test_a_report_names_the_damaged_line(unfinished_run):
    _, run = unfinished_run
    path = run / "seed_0" / "evaluations.jsonl"
    cut(path, path.read_text().splitlines())
    with pytest.raises(UserError, match=r"evaluations\.jsonl: line 2 is damaged"):
        report([run])


def test_a_checksum_distinguishes_zero_and_minus_zero(tmp_path: Path):
    """The checksum covers bytes, not values, and also shapes, dtypes and names."""
    folder, sums = SeedFolder(tmp_path, 0), set()
    zero = torch.zeros(1)
    for tensors in ({"a": zero}, {"a": -zero}, {"b": zero}, {"a": zero[None]}, {"a": zero.int()}):
        folder.save(MIDDLE, tensors, {})
        with safe_open(folder.checkpoints()[MIDDLE], "pt") as file:
            sums.add(file.metadata()["checksum"])
    assert len(sums) == 5
