"""What users type that cannot be meant, and what the one sentence says that they get for it.

A line of MISTAKES is a verb and what is typed otherwise than in SOUND, which would run; `!key`
leaves a key out. A word between bars in what is expected has to be in the sentence.
"""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from small_data import save_small

SOUND = {
    "train": "algorithm=td3_bc task=neorl2/DMSD dataset=small.npz num_updates=20 eval_episodes=1 "
    "compile=never tracker=none algorithm.hidden=[8,8]",
    "finetune": "run=runs/env_Pendulum-v1/sac/default num_env_steps=20 compile=never tracker=none "
    "eval_episodes=1",
    "distill": "run=runs/neorl2_DMSD/td3_bc/default num_updates=20 compile=never tracker=none "
    "eval_episodes=1",
    "evaluate": "run=runs/neorl2_DMSD/td3_bc/default episodes=1",
    "export": "run=runs/neorl2_DMSD/td3_bc/default",
    "play": "run=runs/env_Pendulum-v1/sac/default out=played.gif",
    "generate": "recipe=hopper",
    "benchmark": "suite=demo dry_run=true out=suite",
    "bench": "algorithms=[td3_bc] seeds=[1] precisions=[fp32] blocks=1 seconds=0.1",
    "robot": "robot=desk adapter=simulated",
}
COUNTED = ("robot", "data")  # verbs whose first word is no key

# in `make test`: one of each kind
QUICK = {
    "trian": "'trian' |train|",
    "train !algorithm": "|algorithm=| |missing|",
    "train algorithm=td3bc": "|'td3bc'| |td3_bc|",
    "train task=neorl2/DMSB": "|neorl2/DMSB| |neorl2/DMSD|",
    "train num_update=5": "|num_update| |num_updates|",
    "train algorithm=iql expectile=0.9": "|'expectile'; did you mean algorithm.expectile?|",
    "train algorithm.gamma=0.9": "|'algorithm.gamma'; did you mean algorithm.discount?|",
    "train num_updates=many": "|num_updates| |many| |an integer|",
    "train algorithm.hidden=8": "|algorithm.hidden| |a list|",
    "train algorithm.alpha=[1,1.0]": "|algorithm.alpha| |different|",
    "train algorithm.tau=-3": "|tau|",
    "train device=gpu": "|device=gpu| |cuda|",
    "train seeds=2 seeds=3": "|seeds| |twice|",
    "train seeds": "|'seeds'| |key=value|",
    "train dataset=big.npz": "|big.npz| |no such file|",
    "train !dataset": "|data download neorl2/DMSD| |data_dir=|",
    "train dataset=other.npz": "|other.npz has observations [5] and 3 actions| |[6] and 2|",
    "train dataset=cut.hdf5": "|cut.hdf5| |cut short or damaged|",
    "train dataset=data.pkl": "|data.pkl: a pickle| |numpy.savez|",
    "train dataset=large.npz": "|action_scale|",
    "train out=small.npz/runs": "|small.npz| |out=|",
    "evaluate run=nowhere": "|nowhere|",
    "report nowhere": "|nowhere|",
    "generate recipe=hoper": "|hoper| |hopper|",
    "data info neorl2/DMSB": "|neorl2/DMSB| |neorl2/DMSD|",
    "robot check robot=dask": "|'dask'| |desk|",
}

MORE = {
    # words that are no keys, keys that are no words
    "train -x": "",
    "train --multi": "",
    "train --cfg": "",
    "train --cfg jobs": "",
    "train =5": "",
    "train 5": "",
    "train num_updates": "",
    "train +num_updates=5": "",
    "train ++num_updates=5": "",
    "train ~num_updates": "",
    "train 'name=a b=c,d'": "",
    "train 'name=[1,2'": "",
    "train !algorithm algorithm@a=iql": "",
    "train algorithm.x.y=1": "",
    "train Algorithm=iql": "",
    "train show=false": "",
    "train watch=1": "",
    "train start=1": "",
    "train seed=7": "",
    "train steps=7": "",
    "train lr=0.1": "",
    "train xyzzy=7": "",
    "train wandb.project=x": "",
    "train tracker=wandb wandb.colour=red": "",
    "train tracker=wandb wandb.mode=often": "",
    "train online.mixing=0.5": "",
    "train num_updates=20,40": "",
    "train -m num_updates=interval(1,2)": "",
    "train -m algorithm=td3_bc,td3bc": "",
    "train -m seeds=range(0,0)": "",
    "train experiment=demos": "",
    "train experiment=nowhere.yaml": "",
    "train experiment=list.yaml": "",
    "train experiment=loop.yaml": "",
    "train experiment=key.yaml": "",
    "train experiment=type.yaml": "",
    "train experiment=broken.yaml": "",
    # values
    "train algorithm=": "",
    "train algorithm=null": "",
    "train algorithm=[iql]": "",
    "train algorithm=5": "",
    "train algorithm=none.py": "",
    "train algorithm=syntax.py": "",
    "train algorithm=raises.py": "",
    "train algorithm=empty.py": "",
    "train algorithm=small.npz": "",
    "train algorithm=os:path": "",
    "train algorithm=nothing_such:Class": "",
    "train algorithm=own.py:Nobody": "",
    "train algorithm=common": "",
    "train algorithm=iql algorithm=cql": "",
    "train !task": "",
    "train task=": "",
    "train task=null": "",
    "train task=DMSD": "",
    "train task=hopper": "",
    "train task=Hopper-v9": "",
    "train task=env:": "",
    "train task=env:Hoper-v4": "",
    "train task=env:CartPole-v1": "",
    "train task=env:world.py:Nobody": "",
    "train task=env:world.py:Endless": "",
    "train task=env:world.py:Discrete": "",
    "train task=env:world.py:Unbounded": "",
    "train task=env:nowhere.py:World": "",
    "train task=env:syntax.py:World": "",
    "train task=env:nothing_such:World": "",
    "train task=d4rl:hopper-medium-v2": "",
    "train task=none !dataset": "",
    "train task=none num_env_steps=20": "",
    "train num_updates=-1": "",
    "train num_updates=0": "",
    "train num_updates=1.5": "",
    "train num_updates=": "",
    "train num_updates=null": "",
    "train num_updates=true": "",
    "train num_updates=[20]": "",
    "train num_updates=inf": "",
    "train num_updates=21": "",
    "train pretrain_updates=4": "",
    "train pretrain_updates=-4": "",
    "train batch_size=0": "",
    "train batch_size=1.5": "",
    "train name=new batch_size=8 algorithm.batch_size=16": "",
    "train seeds=0": "",
    "train seeds=-1": "",
    "train seeds=20230101": "",
    "train seeds=[1,1]": "",
    "train seeds=[]": "",
    "train seeds=[-1]": "",
    "train seeds=two": "",
    "train seeds=1.5": "",
    "train eval_every=0": "",
    "train eval_episodes=0": "",
    "train checkpoint_every=0": "",
    "train device=mps": "",
    "train device=cuda:99": "",
    "train device=": "",
    "train precision=fp8": "",
    "train compile=sometimes": "",
    "train stream=1": "",
    "train tracker=tensorbord": "",
    "train out=": "",
    "train name=": "",
    "train name=..": "",
    "train stretch=maybe": "",
    "train utd=2": "",
    "train utd=nan": "",
    "train num_env_steps=10": "",
    "train keep_data=true": "",
    "train expert_dataset=small.npz": "",
    "train base=small.npz": "",
    "train algorithm=recoil": "",
    "train algorithm=consistency !algorithm.hidden": "",
    "train algorithm=resfit !algorithm.hidden": "",
    "train algorithm=dppo !algorithm.hidden": "",
    "train algorithm=wsrl !algorithm.hidden num_updates=0 num_env_steps=20": "",
    "train algorithm=sac num_updates=0 num_env_steps=20 utd=2 online.utd=4": "",
    # hyper-parameters
    "train algorithm.alpha=true": "",
    "train algorithm.alpha=": "",
    "train algorithm.alpha=[]": "",
    "train algorithm.alpha=[a,b]": "",
    "train algorithm.alpha=nan": "",
    "train algorithm.alhpa=1": "",
    "train algorithm.policy_delay=0": "",
    "train algorithm.policy_delay=[1,2]": "",
    "train algorithm.hidden=[0]": "",
    "train algorithm.hidden=[8,a]": "",
    "train algorithm.discount=1.5": "",
    "train algorithm.activation=relux": "",
    "train algorithm.normalise_returns=true dataset=equal.npz": "",
    "train algorithm=sac algorithm.initial_alpha=[0.1,0.2]": "",
    "train algorithm=iql algorithm.expectile=0.2": "",
    "train algorithm=diffusion_policy !algorithm.hidden algorithm.horizon=0": "",
    "train algorithm=diffusion_policy !algorithm.hidden algorithm.window=4 algorithm.executed=9":
    "",
    # data
    "train dataset=": "",
    "train dataset=.": "",
    "train dataset=folder": "",
    "train dataset=zero.npz": "",
    "train dataset=cut.npz": "",
    "train dataset=text.hdf5": "",
    "train dataset=model.pt": "",
    "train dataset=table.csv": "",
    "train dataset=table.parquet": "",
    "train dataset=object.npz": "",
    "train dataset=one.npz": "",
    "train dataset=none.npz": "",
    "train dataset=nan.npz": "",
    "train dataset=uneven.npz": "",
    "train dataset=both.npz": "",
    "train dataset=odd.npz": "",
    "train dataset=words.npz": "",
    "train dataset=flat.npz": "",
    "train dataset=unknown.npz": "",
    "train dataset=short.npz": "",
    "train dataset=discrete.npz task=none": "",
    "train dataset=pictures.npz task=none": "",
    "train dataset=demos.hdf5 task=none": "",
    "train dataset=demos.hdf5 task=none observation_keys=[pos,nothing] action_range=[0,512]": "",
    "train dataset=demos.hdf5 task=none subset=tran action_range=[0,512]": "",
    "train dataset=demos.hdf5 task=none action_range=[512,0]": "",
    "train dataset=demos.hdf5 task=none action_range=[1,2,3]": "",
    "train dataset=demos.hdf5 task=none action_range=512": "",
    "train dataset=demos.hdf5 task=none action_range=data action_scale=2": "",
    "train dataset=demos.hdf5 task=none action_range=[[0,0,0],[1,1,1]]": "",
    "train action_range=data": "",
    "train action_scale=0": "",
    "train observation_keys=[obs]": "",
    "train subset=train": "",
    "train max_episode_steps=0": "",
    "train terminate_on_end=true": "",
    "train dataset=minari:nobody/nothing-v0": "",
    "train dataset=lerobot:nobody/nothing": "",
    "train dataset=file:nowhere.npz": "",
    "train dataset=neorl2/DMSB": "",
    "train dataset=Hopper-v4": "",
    "train data_dir=small.npz !dataset": "",
    # runs
    "train algorithm.alpha=1.0 out=runs": "",
    "train num_updates=10": "",
    "train batch_size=64": "",
    "train dataset=longer.npz": "",
    "train name=damaged": "",
    "train name=lost": "",
    "train name=stopped": "",
    "finetune !run": "",
    "finetune run=nowhere": "",
    "finetune run=small.npz": "",
    "finetune run=runs/env_Pendulum-v1/sac/default/seed_0": "",
    "finetune run=runs/neorl2_DMSD/td3_bc/default": "",
    "finetune run=runs/neorl2_DMSD/td3_bc/damaged algorithm=sac": "",
    "finetune run=runs/neorl2_DMSD/td3_bc/stopped": "",
    "finetune !num_env_steps": "",
    "finetune num_env_steps=0": "",
    "finetune num_env_steps=many": "",
    "finetune seeds=3": "",
    "finetune seeds=[7]": "",
    "finetune seeds=a": "",
    "finetune algorithm=sca": "",
    "finetune algorithm=bc": "",
    "finetune algorithm=td3": "",
    "finetune task=env:Penduluum-v1": "",
    "finetune task=Hopper-v4": "",
    "finetune online.warm_up=-1": "",
    "finetune online.warmup=1": "",
    "finetune utd=0": "",
    "finetune base=policy.bundle": "",
    "finetune !run base=cut.bundle": "",
    "finetune !run base=cut.bundle task=env:Pendulum-v1": "",
    "finetune !run base=nothing_such:still task=env:Pendulum-v1": "",
    "finetune show=1": "",
    "finetune start=1": "",
    "finetune algorithm.hidden=[7,7]": "",
    "distill !run": "",
    "distill run=nowhere": "",
    "distill run=runs/neorl2_DMSD/td3_bc/default": "",
    "distill !num_updates": "",
    "distill algorithm=bc": "",
    "distill start=1": "",
    "distill steps=7": "",
    # policies
    "evaluate !run": "",
    "evaluate run=folder": "",
    "evaluate run=small.npz": "",
    "evaluate run=cut.bundle": "",
    "evaluate run=foreign.bundle": "",
    "evaluate episodes=0": "",
    "evaluate episodes=two": "",
    "evaluate episode=2": "",
    "evaluate task=neorl2/DMSB": "",
    "evaluate task=Hopper-v4": "",
    "evaluate task=none": "",
    "evaluate run=runs/none/bc/default": "",
    "evaluate target_return=5": "",
    "evaluate json=maybe": "",
    "evaluate run=runs/neorl2_DMSD/td3_bc/default seeds=3": "",
    "evaluate --cfg job": "",
    "export !run": "",
    "export run=nowhere": "",
    "export run=cut.bundle": "",
    "export format=onyx": "",
    "export forma=onnx": "",
    "play !run": "",
    "play run=nowhere": "",
    "play run=cut.bundle": "",
    "play out=film.avi": "",
    "play out=film": "",
    "play episodes=0": "",
    "play task=Hopper-v4": "",
    "play target_return=high": "",
    "play out=small.npz/film.gif": "",
    # the rest
    "generate !recipe": "",
    "generate foo=1": "",
    "generate qualities=[]": "",
    "generate qualities=[best]": "",
    "generate out=small.npz": "",
    "generate format=d5rl": "",
    "generate format=lerobot": "",
    "generate recipe=key.yaml": "",
    "generate recipe=broken.yaml": "",
    "generate recipe=nowhere.yaml": "",
    "generate video=true": "",
    "benchmark !suite": "",
    "benchmark suite=demos": "",
    "benchmark suite=nowhere.yaml": "",
    "benchmark suite=broken.yaml": "",
    "benchmark suite=cell.yaml": "",
    "benchmark suite=list.yaml": "",
    "benchmark plan=nowhere.json !suite": "",
    "benchmark plan=cut.json !suite": "",
    "benchmark plan=object.json !suite": "",
    "benchmark plan=object.json": "",
    "benchmark algorithms=[iq]": "",
    "benchmark tasks=[x]": "",
    "benchmark seeds=0": "",
    "benchmark seeds=a": "",
    "benchmark workers=0": "",
    "benchmark dry_run=2": "",
    "bench precisions=[bf61]": "",
    "bench blocks=0": "",
    "bench python=pithon": "",
    "bench algorithms=[iq]": "",
    "bench algorithms=[]": "",
    "bench seconds=0": "",
    "bench corl=nowhere python=python": "",
    "report": "",
    "report small.npz": "",
    "report .": "",
    "report runs/none outt=x": "",
    "report runs/none out=small.npz": "",
    "report runs/none folders=x": "",
    "report runs/neorl2_DMSD/td3_bc/damaged": "",
    "data": "",
    "data lst": "",
    "data list small.npz": "",
    "data list foo=1": "",
    "data info": "",
    "data info small.hdf5": "",
    "data info small.npz other.npz": "",
    "data info small.npz foo=1": "",
    "data info cut.hdf5": "",
    "data info task=none": "",
    "data info none": "",
    "data check": "",
    "data check cut.npz": "",
    "data check nan.npz": "",
    "data check small.npz max_episode_steps=0": "",
    "data check small.npz action_scale=a": "",
    "data convert small.npz": "",
    "data convert small.npz other.npz": "",
    "data convert small.npz new.npz format=csv": "",
    "data convert small.npz new.npz dataset_id=a": "",
    "data convert cut.npz new.hdf5": "",
    "data convert small.npz other.npz/new.hdf5": "",
    "data download": "",
    "data download DMSB": "",
    "data download none": "",
    "data -m": "",
    "robot": "",
    "robot chek": "",
    "robot check !robot": "",
    "robot check robot=5": "",
    "robot check robot=nowhere.yaml": "",
    "robot check robot=broken.yaml": "",
    "robot check robot=list.yaml": "",
    "robot check robot=key.yaml": "",
    "robot check bundle=nowhere": "",
    "robot check bundle=cut.bundle": "",
    "robot check bundle=runs/neorl2_DMSD/td3_bc/default/seed_0/policy.bundle": "",
    "robot check adapter=nothing": "",
    "robot check colour=red": "",
    "robot check rate_hz=fast": "",
    "robot check limits=nowhere.yaml": "",
    "robot check limits=list.yaml": "",
    "robot check limits=broken.yaml": "",
    "robot check limits=joint.yaml": "",
    "robot check runtime=tensorflow bundle=policy.bundle": "",
    "robot run": "",
    "robot run bundle=nowhere": "",
    "robot run bundle=cut.bundle": "",
    "robot run bundle=policy.bundle": "",
    "robot run bundle=policy.bundle seconds=long": "",
    "robot run bundle=policy.bundle keyboard=false": "",
    "robot run bundle=policy.bundle start=maybe": "",
    "robot record": "",
    "robot record out=small.npz": "",
    "robot record out=new.rec seconds=long": "",
    "robot record out=new.rec rate_hz=fast": "",
    "robot record out=new.rec keyboard=maybe": "",
    "robot record out=small.npz/new.rec": "",
    "robot replay": "",
    "robot replay recording=nowhere": "",
    "robot replay recording=small.npz": "",
    "robot replay recording=cut.rec": "",
    "robot replay recording=new.rec start=maybe": "",
    "robot calibrate !adapter robot=dask": "",
    "robot calibrate !adapter": "",
    "robot calibrate ask=1": "",
    "robot calibrate adapter=simulated": "",
}

# Python's own; what stands there is an expression
CALLS = {
    "offline_rl.train()": "",
    "offline_rl.train(algorithm='iq', task='none')": "",
    "offline_rl.train(algorithm='iql')": "",
    "offline_rl.train(algorithm='iql', task='none')": "",
    "offline_rl.train(algorithm='iql', task='none', dataset=3)": "",
    "offline_rl.train(algorithm='iql', task='none', dataset={})": "",
    "offline_rl.train(algorithm='iql', task='none', dataset=np.zeros(3))": "",
    "offline_rl.train(algorithm=offline_rl, task='none', dataset='small.npz')": "",
    "offline_rl.train(algorithm='iql', task='none', dataset='small.npz', seeds=(0, 0))": "",
    "offline_rl.train(algorithm='iql', task='none', dataset='small.npz', num_updates='5')": "",
    "offline_rl.train(algorithm='iql', task='none', dataset='small.npz', num_updates=2.5)": "",
    "offline_rl.train(algorithm='iql', task='none', dataset='small.npz', hidden=[8])": "",
    "offline_rl.train(algorithm='iql', task='none', dataset='small.npz', algorithm__hiden=[8])": "",
    "offline_rl.train(algorithm='iql', task='none', dataset=small, action_scale=2)": "",
    "offline_rl.train(algorithm='iql', task='neorl2/DMSD', dataset=other)": "",
    "offline_rl.train(algorithm='iql', task='none', dataset=small, out=None)": "",
    "offline_rl.finetune()": "",
    "offline_rl.finetune(run='nowhere', num_env_steps=5)": "",
    "offline_rl.finetune(run='runs/none/bc/default')": "",
    "offline_rl.load('nowhere')": "",
    "offline_rl.load('small.npz')": "",
    "offline_rl.load('runs/none/bc/default', seed=7)": "",
    "offline_rl.load('runs/none/bc/default/seed_7')": "",
    "offline_rl.load('runs/neorl2_DMSD/td3_bc/stopped')": "",
    "offline_rl.load('runs/none/bc/default').q_values(s, a)": "",
    "offline_rl.load('runs/none/bc/default').evaluate()": "",
    "offline_rl.load('runs/none/bc/default').act(s[:, :1])": "",
    "offline_rl.load('runs/neorl2_DMSD/td3_bc/default').q_values(s, a[:, :1])": "",
    "offline_rl.load('runs/neorl2_DMSD/td3_bc/default').q_values(s[0], a[0])": "",
    "offline_rl.load('runs/neorl2_DMSD/td3_bc/default').evaluate(0)": "",
    "offline_rl.load('runs/neorl2_DMSD/td3_bc/default').evaluate(task='Hopper-v4')": "",
    "Dataset.from_arrays(s, a, s, s)": "",
    "Dataset.from_arrays(s, a, a[:, 0], a[:2, 0])": "",
    "Dataset.from_arrays(s, 5 * a, a[:, 0], 0 * a[:, 0])": "",
    "Dataset.from_arrays(s, a, a[:, 0] / 0, 0 * a[:, 0])": "",
    "Dataset.from_arrays([], [], [], [])": "",
    "Dataset.from_arrays(None, a, a[:, 0], 0 * a[:, 0])": "",
    "Dataset.from_minari('nobody/nothing-v0')": "",
    "policies.load('nowhere')": "",
    "policies.load('cut.bundle')": "",
    "policies.load('foreign.bundle')": "",
    "policies.load('policy.bundle', runtime='jax')": "",
    "policies.load('policy.bundle', colour='red')": "",
    "policies.load('policy.bundle').act(s[:, :1])": "",
    "policies.load('policy.bundle').act(s * np.nan)": "",
    "policies.Player(policies.load('policy.bundle')).step(s[0, :1])": "",
    "envs.make('Hoper-v4')": "",
    "envs.make('none')": "",
    "envs.make_vector('Hopper-v4', 0)": "",
    "real_robot.run('cut.bundle', 'desk', adapter='simulated')": "",
    "real_robot.run('policy.bundle', 'dask')": "",
}


def typed(line: str) -> list[str]:
    """The words of a line of MISTAKES, completed by what would be sound."""
    import shlex

    verb, *words = shlex.split(line)
    first = words[:1] if verb in COUNTED and words and "=" not in words[0] else []
    own = words[len(first) :]
    said = {word.removeprefix("!").split("=")[0] for word in own}
    sound = [w for w in SOUND.get(verb, "").split() if w.split("=")[0] not in said]
    return [verb, *first, *sound, *(word for word in own if not word.startswith("!"))]


def make_files(here: Path) -> None:
    """What the lines name, but for runs."""
    small = dict(np.load(save_small(here / "small.npz")))
    rows = len(small["obs"])
    save_small(here / "other.npz", obs=5, act=3)
    save_small(here / "longer.npz", num_rows=600)
    for name, changes in spoilt(small).items():
        kept = {k: v for k, v in (small | changes).items() if v is not None}
        np.savez(here / f"{name}.npz", **kept)
    words = ("observations", "actions", "rewards", "terminals", "timeouts")
    own = ("obs", "action", "reward", "done", "truncated")
    with h5py.File(here / "whole.hdf5", "w") as file:
        for word, key in zip(words, own, strict=True):
            file[word] = small[key]
    with h5py.File(here / "demos.hdf5", "w") as file:
        for demo in range(2):
            group = file.create_group(f"data/demo_{demo}")
            group["actions"] = np.linspace(0, 512, rows * 2).reshape(rows, 2)
            group["rewards"], group["obs/pos"] = small["reward"], small["obs"]
        file["mask/train"] = np.array(["demo_1"], "S8")
    (here / "cut.hdf5").write_bytes((here / "whole.hdf5").read_bytes()[:3000])
    (here / "cut.npz").write_bytes((here / "small.npz").read_bytes()[:3000])
    (here / "folder").mkdir()
    with zipfile.ZipFile(here / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps([1, 2]))
    (here / "data.pkl").write_bytes(pickle.dumps([1, 2]))
    texts: dict[str, str | bytes] = {
        "zero.npz": "",
        "text.hdf5": "no data here",
        "table.csv": "a,b\n1,2\n",
        "table.parquet": b"PAR1" + bytes(90),
        "syntax.py": "def:\n",
        "raises.py": "raise RuntimeError('so it is')\n",
        "empty.py": "",
        "own.py": "from offline_rl.algorithms.bc import *\n",
        "world.py": WORLD,
        "broken.yaml": "a: [1\nb: }",
        "list.yaml": "[1, 2]",
        "loop.yaml": "defaults: [loop.yaml]",
        "key.yaml": "algorithm: iql\ncolour: red",
        "type.yaml": "algorithm: iql\nnum_updates: many",
        "cell.yaml": "cells: [{algorithm: iql, task: neorl2/DMSD, colour: red}]",
        "joint.yaml": "velocity: {nobody: 0.5}",
        "cut.json": '{"version": 1, "ce',
        "object.json": "{}",
        "cut.bundle": b"PK\x03\x04" + bytes(90),
        "foreign.bundle": "no bundle",
        "cut.rec": b"RRTICKS\n" + bytes(9),
    }
    for name, text in texts.items():
        (here / name).write_bytes(text.encode() if isinstance(text, str) else text)


def spoilt(small: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Arrays to be changed in a sound file: a fault by the name of its file."""
    row = np.arange(len(small["obs"]))
    return {
        "pictures": {k: small[k].repeat(4, 1)[:, :16].reshape(-1, 4, 4) for k in SEEN},
        "equal": {"reward": 0 * small["reward"]},
        "large": {"action": 30 * small["action"]},
        "discrete": {"action": row % 3},
        "one": {key: array[:1] for key, array in small.items()},
        "none": {key: array[:0] for key, array in small.items()},
        "nan": {"reward": np.where(row == 7, np.nan, small["reward"])},
        "uneven": {"reward": small["reward"][:-1]},
        "both": {"done": small["truncated"]},
        "odd": {"done": 0.5 * small["truncated"]},
        "words": {"obs": np.full(small["obs"].shape, "x")},
        "flat": {"obs": small["obs"][:, 0], "next_obs": None},
        "unknown": {"done": None, "truncated": None},
        "short": {"action": None},
        "object": {"obs": np.array([None] * len(row), object)},
    }


SEEN = ("obs", "next_obs")
WORLD = """
import gymnasium
import numpy as np

ROOM, MOVES = gymnasium.spaces.Box(-1, 1, (6,)), gymnasium.spaces.Box(-1, 1, (2,))

class World(gymnasium.Env):
    observation_space, action_space, max_episode_steps = ROOM, MOVES, 10

    def reset(self, *, seed=None, options=None):
        return np.zeros(6, np.float32), {}

    def step(self, action):
        return np.zeros(6, np.float32), 0.0, False, False, {}

class Endless(World):
    max_episode_steps = None

class Discrete(World):
    action_space = gymnasium.spaces.Discrete(3)

class Unbounded(World):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
"""


def make_runs(here: Path) -> None:
    """Runs that the lines name, `here` being the working folder; a few seconds."""
    import offline_rl

    common: dict[str, Any] = {"compile": "never", "tracker": "none", "eval_episodes": 1}
    common |= {"show": False, "device": "cpu"}
    small = common | {"dataset": "small.npz", "num_updates": 20, "algorithm__hidden": [8, 8]}
    done = offline_rl.train(algorithm="td3_bc", task="neorl2/DMSD", **small).path
    offline_rl.train(algorithm="bc", task="none", **small)
    offline_rl.train(
        algorithm="sac", task="env:Pendulum-v1", num_updates=0, num_env_steps=20, **common
    )
    shutil.copy(done / "seed_0" / "policy.bundle", here / "policy.bundle")
    for name in ("damaged", "lost", "stopped"):
        shutil.copytree(done, done.with_name(name))
    (done.with_name("damaged") / "seed_0" / "config.json").write_text('{"algo')
    (done.with_name("damaged") / "seed_0" / "result.json").write_text("[]")
    (done.with_name("lost") / "seed_0" / "config.json").unlink()
    shutil.rmtree(done.with_name("stopped") / "seed_0" / "checkpoints")
    (done.with_name("stopped") / "seed_0" / "result.json").unlink()
