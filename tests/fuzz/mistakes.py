"""Mistakes on the command line and in Python calls, with fragments of the expected messages.

A line is a verb with options. The other options of the command are those in VALID, with which the
verb would run; `!key` removes one of them. The message must contain every fragment; `…` separates
fragments.
"""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from small_data import save_small

VALID = {
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
AFTER_OUTPUT = {  # mistakes that are found after some output, for example once networks are built
    "finetune algorithm=td3",
    "finetune algorithm.hidden=[7,7]",
    "data check cut.npz",  # prints a list of problems
    "data check nan.npz",
    "data check small.npz max_episode_steps=0",
}
COUNTED = ("robot", "data")  # verbs whose first word is an action

# in `make test`: one of each kind
QUICK = {
    "trian": "train",
    "train !algorithm": "algorithm= … missing",
    "train algorithm=td3bc": "'td3bc' … td3_bc",
    "train task=neorl2/DMSB": "neorl2/DMSB … neorl2/DMSD",
    "train num_update=5": "num_update … num_updates",
    "train algorithm=iql expectile=0.9": "'expectile'; did you mean algorithm.expectile?",
    "train algorithm.gamma=0.9": "'algorithm.gamma'; did you mean algorithm.discount?",
    "train num_updates=many": "num_updates … many … an integer",
    "train algorithm.hidden=8": "algorithm.hidden … a list",
    "train algorithm.alpha=[1,1.0]": "algorithm.alpha … different",
    "train algorithm.tau=-3": "tau",
    "train device=gpu": "device=gpu … cuda",
    "train seeds=2 seeds=3": "seeds … twice",
    "train seeds": "'seeds' … key=value",
    "train dataset=big.npz": "big.npz … no such file",
    "train !dataset": "data download neorl2/DMSD … data_dir=",
    "train dataset=other.npz": "other.npz has observations [5] and 3 actions … [6] and 2",
    "train dataset=cut.hdf5": "cut.hdf5 … incomplete or damaged",
    "train dataset=data.pkl": "data.pkl: a pickle … numpy.savez",
    "train dataset=large.npz": "action_scale",
    "train task=env:world.py:Asking": "Asking cannot be built: TypeError: … parameter a default",
    "train task=env:world.py:Off": "Off: step failed: … world.py, line … Error: motor off",
    "train out=small.npz/runs": "small.npz … out=",
    "evaluate run=nowhere": "nowhere",
    "finetune run=nowhere": "run=nowhere does not exist",
    "finetune !num_env_steps": "finetune needs num_env_steps=…",
    "report nowhere": "nowhere",
    "generate recipe=hoper": "hoper … hopper",
    "data info neorl2/DMSB": "neorl2/DMSB … neorl2/DMSD",
    "robot check robot=dask": "'dask' … desk",
    "train 'algorithm.hidden=[[8,8],[9,9]]'": "an integer … -m 'algorithm.hidden=[8,8],[9,9]'",
    "train algorithm.hidden=[9999999999]": "algorithm.hidden=(9999999999,) … larger than memory",
    "evaluate runs/mine !run": "Did you mean run=runs/mine?",
}

MORE = {
    # unknown options and malformed arguments
    "train -x": "unknown flag '-x'; there are --cfg, --help, --multirun, -c, -m",
    "train --multi": "unknown flag '--multi'; did you mean --multirun?",
    "train --cfg": "--cfg can print only the job. Use --cfg job.",
    "train --cfg jobs": "--cfg can print only the job. Use --cfg job.",
    "train =5": "unknown option ''; --help lists the valid names",
    "train 5": "'5' is not of the form key=value. Put a value with special",
    "train num_updates": "'num_updates' is not of the form key=value. Put a value with",
    "train +num_updates=5": "'+num_updates=5': keys cannot be added or moved. Write key=value.",
    "train ++num_updates=5": "'++num_updates=5': keys cannot be added or moved. Write key=value.",
    "train ~num_updates": "'~num_updates': a key cannot be removed. Set it to another value.",
    "train 'name=a b=c,d'": "'name=a b=c,d' is not of the form key=value. Put a value with",
    "train 'name=[1,2'": "'name=[1,2' is not of the form key=value. Put a value with",
    "train !algorithm algorithm@a=iql": "'algorithm@a=iql': keys cannot be added or moved.",
    "train algorithm.x.y=1": "unknown option 'algorithm.x.y'; --help lists the",
    "train Algorithm=iql": "unknown option 'Algorithm'; did you mean algorithm?",
    "train show=false": "unknown option 'show'; --help lists the valid names",
    "train watch=1": "unknown option 'watch'; --help lists the valid names",
    "train start=1": "unknown option 'start'; did you mean stretch?",
    "train seed=7": "unknown option 'seed'; did you mean seeds?",
    "train steps=7": "unknown option 'steps'; did you mean num_updates?",
    "train runs_dir=x": "unknown option 'runs_dir'; did you mean out?",
    "train random_state=1": "unknown option 'random_state'; did you mean seeds?",
    "train wandb=true": "unknown option 'wandb'; did you mean tracker?",
    "train workers=2": "unknown option 'workers'; --help lists the valid names",
    "train algorithm.optimizer=adam": "unknown option 'algorithm.optimizer'; --help lists the",
    "train algorithm=IQL": "unknown algorithm 'IQL'; did you mean iql?",
    "train batch_size=[32,64]": "expected an integer or null. For one run per value: -m 'batch",
    "train stretch=[true,false]": "expected true or false. For one run per value: -m 'stretch=",
    "train algorithm.activation=[relu,tanh]": "one of … -m 'algorithm.activation=relu,tanh'",
    "train batch_size=99999999999": "batch_size=99999999999: one batch is larger than memory",
    "train lr=0.1": "unknown option 'lr'; did you mean algorithm.actor_lr or",
    "train xyzzy=7": "unknown option 'xyzzy'; --help lists the valid names",
    "train wandb.project=x": "wandb.project= needs tracker=wandb",
    "train tracker=wandb wandb.color=red": "unknown option 'wandb.color'; --help lists the valid",
    "train tracker=wandb wandb.mode=often": "wandb.mode='often': expected one of online, offline",
    "train online.offline_fraction=0.5": "online.offline_fraction= has no effect without num_env",
    "train num_updates=20,40": "'num_updates=20,40' has several values. Use -m for one run",
    "train -m num_updates=interval(1,2)": "'num_updates=interval(1,2)' is not a list of values",
    "train -m algorithm=td3_bc,td3bc": "neorl2_DMSD td3bc default: unknown algorithm 'td3bc'; did",
    "train -m seeds=range(0,0)": "'seeds=range(0,0)': one of the sweeps has no values",
    "train experiment=demos": "unknown experiment 'demos'; did you mean demo?",
    "train experiment=nowhere.yaml": "experiment=nowhere.yaml: no such file",
    "train experiment=list.yaml": "list.yaml: lines of the form name: value are expected; found",
    "train experiment=loop.yaml": "loop.yaml extends itself: loop.yaml",
    "train experiment=key.yaml": "key.yaml: unknown option 'color'; --help lists the",
    "train experiment=type.yaml": "type.yaml: num_updates='many': expected an integer",
    "train experiment=broken.yaml": "broken.yaml is not readable as YAML",
    # values
    "train algorithm=": "unknown algorithm ''; there are act, arsq, awac",
    "train algorithm=null": "unknown algorithm 'None'; there are act, arsq, awac",
    "train algorithm=[iql]": "unknown algorithm \"['iql']\"; did you mean iql?",
    "train algorithm=5": "unknown algorithm '5'; there are act, arsq, awac",
    "train algorithm=none.py": "none.py: No such file or directory",
    "train algorithm=syntax.py": "syntax.py: SyntaxError: invalid syntax (syntax.py, line 1)",
    "train algorithm=raises.py": "raises.py, line 1: RuntimeError: so it is",
    "train algorithm=empty.py": "empty.py defines no algorithm. Define a subclass of offline_rl's",
    "train algorithm=small.npz": "unknown algorithm 'small.npz'; there are act, arsq, awac",
    "train algorithm=os:path": "algorithm=os:path: unknown algorithm 'path'; --help lists",
    "train algorithm=nothing_such:Class": "algorithm=nothing_such:Class: No module named",
    "train algorithm=own.py:Nobody": "algorithm=own.py:Nobody: unknown algorithm 'Nobody'; there",
    "train algorithm=common": "unknown algorithm 'common'; did you mean combo?",
    "train algorithm=iql algorithm=cql": "algorithm is given twice",
    "train !task": "task=… is missing",
    "train task=": "unknown task ''. Use env:<id> for a Gymnasium environment",
    "train task=null": "task=None: expected text",
    "train task=DMSD": "unknown task 'DMSD'. Did you mean neorl2/DMSD? Use env:<id>",
    "train task=hopper": "unknown task 'hopper'. Did you mean Hopper-v4",
    "train task=Hopper-v9": "unknown task 'Hopper-v9'. Did you mean Hopper-v4",
    "train task=env:": "unknown environment ''. If a module or file registers it",
    "train task=env:Hoper-v4": "unknown environment 'Hoper-v4'. Did you mean Hopper-v4",
    "train task=env:CartPole-v1": "CartPole-v1 has actions Discrete(2); a vector of real numbers",
    "train task=env:world.py:Nobody": "unknown environment 'Nobody' … world.py has World, Endless",
    "train task=env:world.py:Endless": "Endless has no time limit … max_episode_steps=<steps>",
    "train task=env:world.py:Fixed": "Fixed: action 1 cannot vary, its bounds are 2 and 2.",
    "train task=env:world.py:Column": "Column has actions … Flatten them",
    "train task=env:world.py:Thing": "env:world.py:Thing is not an environment. Let the class",
    "train task=env:world.py:Old": "Old: step failed: … It must return observation, reward, term",
    "train task=env:world.py:Wide": "reset returned an observation of shape (7,), its observation_",
    "train task=env:world.py:Lost": "Lost: reset returned an observation with NaN or infinite",
    "train task=env:world.py:Named observation_keys=[c]": "observation 'c'; it has a, b",
    "train task=env:world.py:Discrete": "Discrete has actions Discrete(3); a vector of real",
    "train task=env:world.py:Unbounded": "Unbounded has actions without bounds, Box(-inf, inf",
    "train task=env:nowhere.py:World": "env:nowhere.py: the file does not exist",
    "train task=env:syntax.py:World": "syntax.py: SyntaxError: invalid syntax (syntax.py, line 1)",
    "train task=env:nothing_such:World": "env:nothing_such:World: No module named 'nothing_such'",
    "train task=d4rl:hopper-medium-v2": "d4rl:<id> needs the d4rl package (No module named",
    "train task=none !dataset": "task none has no dataset. Set dataset=<path or id>",
    "train task=none num_env_steps=20": "td3_bc does not learn online. Remove num_env_steps",
    "train num_updates=-1": "num_updates=-1 is not at least 0",
    "train num_updates=many": "num_updates='many': expected",
    "train num_updates=0": "nothing to do: num_updates and num_env_steps are both 0",
    "train num_updates=1.5": "num_updates=1.5: expected an integer",
    "train num_updates=": "num_updates='': expected an integer",
    "train num_updates=null": "num_updates=None: expected an integer",
    "train num_updates=true": "num_updates=True: expected an integer",
    "train num_updates=[20]": "num_updates=[20]: expected an integer",
    "train num_updates=inf": "num_updates=inf: expected an integer",
    "train num_updates=21": "num_updates=21 is not a multiple of 2 (td3_bc repeats every 2",
    "train pretrain_updates=4": "pretrain_updates=4: td3_bc has no preliminary phase with these",
    "train pretrain_updates=-4": "pretrain_updates=-4 is not at least 0",
    "train batch_size=0": "batch_size=0 is not at least 1",
    "train batch_size=1.5": "batch_size=1.5: expected an integer or null",
    "train name=new batch_size=8 algorithm.batch_size=16": "both keys set the same option",
    "train seeds=0": "seeds=0: expected a count from 1 to 901, or a list such as",
    "train seeds=-1": "seeds=-1: expected a count from 1 to 901, or a list such as",
    "train seeds=20230101": "seeds=20230101: expected a count from 1 to 901, or a list such as",
    "train seeds=[1,1]": "seeds=[1, 1]: expected different seeds between 0 and 900",
    "train seeds=[]": "seeds=[]: expected different seeds between 0 and 900",
    "train seeds=[-1]": "seeds=[-1]: expected different seeds between 0 and 900",
    "train seeds=two": "seeds='two': expected an integer or a list [an integer, …]",
    "train seeds=1.5": "seeds=1.5: expected an integer or a list [an integer, …]",
    "train eval_every=0": "eval_every=0 is not at least 1",
    "train eval_episodes=0": "eval_episodes=0 is not at least 1",
    "train checkpoint_every=0": "checkpoint_every=0 is not at least 1",
    "train device=mps": "device=mps is unknown. Use auto, cpu, cuda or cuda:<number>",
    "train device=cuda:99": "device=cuda:99: PyTorch finds no CUDA device here. Use device=cpu",
    "train device=": "device= is unknown. Use auto, cpu, cuda or cuda:<number>",
    "train precision=fp8": "precision='fp8': expected one of auto, fp32, tf32, bf16",
    "train compile=sometimes": "compile='sometimes': expected one of auto, always, never",
    "train stream=1": "stream=1: expected one of auto, always, never",
    "train tracker=tensorbord": "tracker='tensorbord': expected one of tensorboard, wandb, none",
    "train out=": "out= is empty. Use out=. for the working folder",
    "train name=": "name='' cannot be the name of a folder",
    "train name=..": "name='..' cannot be the name of a folder",
    "train stretch=maybe": "stretch='maybe': expected true or false",
    "train utd=2": "utd= has no effect without num_env_steps=",
    "train utd=nan": "utd=nan is not above 0",
    "train num_env_steps=10": "td3_bc does not learn online. Remove num_env_steps",
    "train keep_data=true": "keep_data=true saves online experience. Set num_env_steps=",
    "train expert_dataset=small.npz": "td3_bc does not use expert_dataset",
    "train base=small.npz": "base= is used by dsrl and resfit; td3_bc has no base policy",
    "train algorithm=recoil": "recoil needs expert demonstrations. Set expert_dataset=",
    "train algorithm=consistency !algorithm.hidden": "consistency needs a teacher. Use offline-rl",
    "train algorithm=resfit !algorithm.hidden": "resfit needs a frozen base policy. Set base=",
    "train algorithm=dppo !algorithm.hidden": "dppo fine-tunes a trained policy. Use offline-rl",
    "train algorithm=sac num_updates=0 num_env_steps=20 utd=2 online.utd=4": "both keys set",
    # hyper-parameters
    "train algorithm.alpha=true": "algorithm.alpha=True: expected a number",
    "train algorithm.alpha=": "algorithm.alpha='': expected a number",
    "train algorithm.alpha=[]": "algorithm.alpha: the values of a list must be different",
    "train algorithm.alpha=[a,b]": "algorithm.alpha='a': expected a number",
    "train algorithm.alpha=nan": "algorithm.alpha=nan is not at least 0",
    "train algorithm=act algorithm.d_model=8 !algorithm.hidden": "mean algorithm.dim_model?",
    "train algorithm=flow_policy algorithm.inference_steps=8 !algorithm.hidden": "mean "
    "algorithm.num_inference_steps?",
    "train algorithm.alhpa=1": "unknown option 'algorithm.alhpa'; did you mean algorithm.alpha?",
    "train algorithm.policy_delay=0": "algorithm.policy_delay=0 is not at least 1",
    "train algorithm.policy_delay=[1,2]": "algorithm.policy_delay=[1, 2]: expected an integer",
    "train algorithm.hidden=[0]": "algorithm.hidden=(0,) is not at least 1",
    "train algorithm.hidden=[8,a]": "algorithm.hidden='a': expected an integer",
    "train algorithm.discount=1.5": "algorithm.discount=1.5 is not at least 0 and below 1",
    "train algorithm.activation=relux": "algorithm.activation='relux': expected one of relu, elu",
    "train algorithm.normalize_returns=true dataset=equal.npz": "equal.npz: every episode has the",
    "train algorithm=sac algorithm.initial_alpha=[0.1,0.2]": "algorithm.initial_alpha cannot",
    "train algorithm=iql algorithm.expectile=0.2": "algorithm.expectile=0.2 is not at least 0.5",
    "train algorithm=diffusion_policy !algorithm.hidden algorithm.horizon=0": "algorithm.horizon",
    "train algorithm=diffusion_policy !algorithm.hidden algorithm.n_action_steps=99": (
        "actions from the current step on"
    ),
    "train algorithm=act !algorithm.hidden algorithm.temporal_ensemble_coeff=0.01": (
        "Set n_action_steps=1"
    ),
    # data
    "train dataset=": "neorl2/DMSD: DMSD-high-100000-train.npz is not",
    "train dataset=.": ".: a folder that is not a data set",
    "train dataset=folder": "folder: a folder that is not a data set",
    "train dataset=zero.npz": "zero.npz: the file is empty. Copy or download it again",
    "train dataset=cut.npz": "cut.npz: a ZIP archive that is incomplete or damaged",
    "train dataset=text.hdf5": "text.hdf5: not a data set. It begins with b'no data here', un",
    "train dataset=model.pt": "model.pt: a PyTorch file, which is a pickle",
    "train dataset=table.csv": "table.csv: a table of text. Its columns",
    "train dataset=table.parquet": "table.parquet: a Parquet table. Its columns",
    "train dataset=object.npz": "object.npz: obs holds pickled Python objects, which are never",
    "train dataset=one.npz": "one.npz has 1 rows, of which 1 have a next observation. That",
    "train dataset=none.npz": "none.npz: the arrays have no rows. Check that the recording was",
    "train dataset=nan.npz": "nan.npz: reward has nan first in row 7, and 1 of 300 rows are",
    "train dataset=uneven.npz": "uneven.npz: row counts differ (obs 300, action 300, reward 299",
    "train dataset=both.npz": "both.npz: done and truncated are both set in row 99 (3 such",
    "train dataset=odd.npz": "odd.npz: done is 0.5 in row 99 (3 such rows); a flag must be 0",
    "train dataset=words.npz": "words.npz: obs has type <U1; numbers are expected",
    "train dataset=flat.npz": "flat.npz: no array 'terminals' or 'terminated', but 'truncated'",
    "train dataset=unknown.npz": "unknown.npz: no array 'terminals' or 'terminated' in this NPZ",
    "train dataset=short.npz": "short.npz: no array 'actions' or 'action' in this NPZ file",
    "train dataset=discrete.npz task=none": "discrete.npz: action are whole numbers from 0 to 2",
    "train dataset=pictures.npz task=none": "pictures.npz has observations [4, 4] and 2 actions",
    "train dataset=demos.hdf5 task=none": "demos.hdf5: actions [600, 2] reach from 0 to 512; they",
    "train dataset=demos.hdf5 task=none observation_keys=[pos,nothing]": "no nothing",
    "train dataset=demos.hdf5 task=none subset=tran action_range=[0,512]": "no subset 'tran'",
    "train dataset=demos.hdf5 task=none action_range=[512,0]": "action_range=[512.0, 0.0] is not",
    "train dataset=demos.hdf5 task=none action_range=[1,2,3]": "action_range=[1.0, 2.0, 3.0]",
    "train dataset=demos.hdf5 task=none action_range=512": "action_range=512: expected a list [a",
    "train dataset=demos.hdf5 task=none action_range=data action_scale=2": "both given",
    "train dataset=demos.hdf5 task=none action_range=[[0,0,0],[1,1,1]]": "limits are given for 3",
    "train action_range=data": "action_range=data needs task=none … than that of neorl2/DMSD",
    "train action_scale=0": "action_scale=0.0 is not above 0",
    "train observation_keys=[obs]": "small.npz: observation_keys has no meaning in the layout of",
    "train subset=train": "small.npz: subset has no meaning in the layout of D4RL, DSRL",
    "train max_episode_steps=0": "max_episode_steps=0 is not at least 1",
    "train terminate_on_end=true": "terminate_on_end=true needs d4rl_compatible=true",
    "train dataset=minari:nobody/nothing-v0": "no data set",
    "train dataset=lerobot:nobody/nothing": "no data set",
    "train dataset=file:nowhere.npz": "nowhere.npz: no such file. Check the path given as the",
    "train dataset=neorl2/DMSB": "no such file",
    "train dataset=Hopper-v4": "task Hopper-v4 has no data set. Give a file with dataset=<path>",
    "train data_dir=small.npz !dataset": "neorl2/DMSD: DMSD-high-100000-train.npz",
    # runs
    "train algorithm.alpha=1.0 out=runs": "was started with algorithm.alpha=0.2, now it is 1.0",
    "train num_updates=10": "runs/neorl2_DMSD/td3_bc/default/seed_0 was started with",
    "train batch_size=64": "runs/neorl2_DMSD/td3_bc/default/seed_0 was started with",
    "train dataset=longer.npz": "was started with other data",
    "train -m dataset=longer.npz algorithm=bc,td3_bc": "was started with other data",
    "train name=damaged": "runs/neorl2_DMSD/td3_bc/damaged/seed_0/config.json is not",
    "train name=lost": "runs/neorl2_DMSD/td3_bc/lost/seed_0/config.json is missing",
    "train name=stopped": "runs/neorl2_DMSD/td3_bc/stopped/seed_0 was started with",
    "finetune !run": "finetune needs either run=<folder> to continue from, or base=",
    "finetune run=small.npz": "run=small.npz is a file",
    "finetune run=runs/env_Pendulum-v1/sac/default/seed_0": "run=runs/env_Pendulum-v1/sac/default/",
    "finetune run=runs/neorl2_DMSD/td3_bc/default": "td3_bc does not learn online. Choose",
    "finetune run=runs/neorl2_DMSD/td3_bc/damaged algorithm=sac": "runs/neorl2_DMSD/td3_bc/damaged",
    "finetune run=runs/neorl2_DMSD/td3_bc/stopped": "runs/neorl2_DMSD/td3_bc/stopped/seed_0 has",
    "finetune num_env_steps=0": "finetune needs num_env_steps=…",
    "finetune num_env_steps=many": "num_env_steps='many': expected an integer",
    "finetune seeds=3": "seeds=3: run=runs/env_Pendulum-v1/sac/default has 1 seeds, [0]",
    "finetune seeds=[7]": "run=runs/env_Pendulum-v1/sac/default has no seed 7; it has [0]",
    "finetune seeds=a": "run=runs/env_Pendulum-v1/sac/default has no seed a; it has [0]",
    "finetune algorithm=sca": "unknown algorithm 'sca'; did you mean sac?",
    "finetune algorithm=bc": "bc does not learn online. Choose an online algorithm",
    "finetune algorithm=td3": "runs/env_Pendulum-v1/sac/default",
    "finetune task=env:Penduluum-v1": "unknown environment 'Penduluum-v1'. Did you mean",
    "finetune task=Hopper-v4": "runs/env_Pendulum-v1/sac/default was trained on observations [3]",
    "finetune online.warmup_steps=-1": "online.warmup_steps=-1 is not at least 0",
    "finetune online.warmup=1": "unknown option 'online.warmup'; did you mean online.warmup_steps?",
    "finetune utd=0": "utd=0.0 is not above 0",
    "finetune base=policy.bundle": "finetune needs either run=<folder> to continue from, or base=",
    "finetune !run base=cut.bundle": "finetune with base= needs task=…",
    "finetune !run base=cut.bundle task=env:Pendulum-v1 online.offline_fraction=0": "is not a",
    "finetune !run base=nothing_such:still task=env:Pendulum-v1 online.offline_fraction=0": (
        "base=nothing_such:still"
    ),
    "finetune show=1": "unknown option 'show'; --help lists the valid names",
    "finetune start=1": "unknown option 'start'; did you mean stretch?",
    "finetune algorithm.hidden=[7,7]": "runs/env_Pendulum-v1/sac/default",
    "distill !run": "distill needs a teacher. Set run=<folder>",
    "distill run=nowhere": "run=nowhere does not exist",
    "distill run=runs/neorl2_DMSD/td3_bc/default": "td3_bc/default (td3_bc) cannot be the teacher",
    "distill !num_updates": "distill needs num_updates=…",
    "distill algorithm=bc": "bc does not learn from a teacher. Use offline-rl train",
    "distill start=1": "run=runs/neorl2_DMSD/td3_bc/default (td3_bc) cannot be the",
    "distill steps=7": "run=runs/neorl2_DMSD/td3_bc/default (td3_bc) cannot be the",
    # policies
    "evaluate !run": "run=… is missing",
    "evaluate run=folder": "run=folder has no policy.bundle, and no seed folder with one",
    "evaluate run=small.npz": "small.npz is not a complete policy bundle: 'manifest.json'",
    "evaluate run=cut.bundle": "cut.bundle is not a complete policy bundle",
    "evaluate run=foreign.bundle": "foreign.bundle is not a complete policy bundle",
    "evaluate episodes=0": "episodes=0 is not at least 1",
    "evaluate episodes=two": "episodes='two': expected an integer",
    "evaluate episode=2": "unknown option 'episode'; did you mean episodes?",
    "evaluate task=neorl2/DMSB": "unknown task 'neorl2/DMSB'. Did you mean neorl2/DMSD",
    "evaluate task=Hopper-v4": "runs/neorl2_DMSD/td3_bc/default/seed_0/policy.bundle does not",
    "evaluate task=none": "task 'none' has no environment. Train without evaluation",
    "evaluate run=runs/none_small/bc/default": "runs/none_small/bc/default/seed_0/policy.bundle",
    "evaluate target_return=5": "runs/neorl2_DMSD/td3_bc/default/seed_0/policy.bundle: a",
    "evaluate json=maybe": "json='maybe': expected true or false",
    "evaluate run=runs/neorl2_DMSD/td3_bc/default seeds=3": "unknown option 'seeds'; there are",
    "evaluate --cfg job": "evaluate has no flag --cfg; options are key=value. See",
    "export !run": "run=… is missing",
    "export run=nowhere": "run=nowhere does not exist. Give a bundle or the folder of",
    "export run=cut.bundle": "cut.bundle is not a complete policy bundle",
    "export format=onyx": "format='onyx': expected one of onnx, none",
    "export forma=onnx": "unknown option 'forma'; did you mean format?",
    "play !run": "run=… is missing",
    "play run=nowhere": "run=nowhere does not exist. Give a bundle or the folder of",
    "play run=cut.bundle": "cut.bundle is not a complete policy bundle",
    "play out=film.avi": "out=film.avi is not a supported format. Use .mp4 or .gif",
    "play out=film": "out=film is not a supported format. Use .mp4 or .gif",
    "play episodes=0": "episodes=0 is not at least 1",
    "play task=Hopper-v4": "runs/env_Pendulum-v1/sac/default/seed_0/policy.bundle does not",
    "play target_return=high": "target_return='high': expected a number or null",
    "play out=small.npz/film.gif": "small.npz/film.gif could not be written: File exists",
    # the rest
    "generate !recipe": "recipe=… is missing",
    "generate foo=1": "unknown option 'foo'; there are episodes, format, out, processes, qualities",
    "generate qualities=[]": "qualities=[] selects no set. Remove it",
    "generate qualities=[best]": "unknown quality 'best'; there are expert, full-replay, medium",
    "generate out=small.npz": "small.npz cannot be created: File exists",
    "generate format=d5rl": "format='d5rl': expected one of d4rl, lerobot",
    "generate format=lerobot": "format=lerobot is only for demonstrations, but hopper",
    "generate rows=5": "rows= is only for demonstrations, but hopper trains an agent",
    "generate recipe=push rows=0": "rows=0 is not at least 1",
    "generate task=cube-single": "task= does not apply to recipe=hopper. Select",
    "generate recipe=ogbench": "recipe=ogbench needs a task. Add task=, one of cube-single",
    "generate recipe=ogbench task=antmaze-large": "unknown task 'antmaze-large'",
    "generate recipe=key.yaml": "key.yaml: unknown option 'algorithm'; there are compile",
    "generate recipe=broken.yaml": "broken.yaml is not readable as YAML",
    "generate recipe=nowhere.yaml": "nowhere.yaml is not readable as YAML",
    "generate video=true": "video=true needs format=lerobot",
    "benchmark !suite": "benchmark: give either suite=<name or file> or plan=<plan.json>",
    "benchmark launcher=rai": "launcher='rai': expected one of local, ray, slurm",
    "benchmark address=127.0.0.1:1": "address= needs launcher=ray, and launcher=local is used",
    "benchmark suite=demos": "unknown suite 'demos'; did you mean demo?",
    "benchmark suite=nowhere.yaml": "suite=nowhere.yaml does not exist",
    "benchmark suite=broken.yaml": "broken.yaml is not readable as YAML",
    "benchmark suite=cell.yaml": "cell 1 ({'algorithm': 'iql', 'task': 'neorl2/DMSD'}): unknown",
    "benchmark suite=list.yaml": "list.yaml is not a suite. Expected `cells:`, found [1",
    "benchmark plan=nowhere.json !suite !out": "nowhere.json is not readable as JSON",
    "benchmark plan=cut.json !suite !out": "cut.json is not readable as JSON",
    "benchmark plan=object.json !suite !out": "object.json is not a plan of version 1. Remove it",
    "benchmark plan=object.json": "benchmark: give either suite=<name or file> or plan=<plan.json>",
    "benchmark algorithms=[iq]": "unknown algorithm of this suite 'iq'; did you mean iql?",
    "benchmark tasks=[x]": "unknown task of this suite 'x'; there are",
    "benchmark seeds=0": "cell 1 ({'algorithm': 'iql', 'task'",
    "benchmark seeds=a": "seeds='a': expected an integer or a list [an integer, …] or null",
    "benchmark workers=0": "workers=0 is not at least 1",
    "benchmark dry_run=2": "dry_run=2: expected true or false",
    "bench precisions=[bf61]": "precisions='bf61': expected one of fp32, tf32, bf16",
    "bench blocks=0": "blocks=0 is not at least 1",
    "bench python=pithon": "python=pithon is not a program",
    "bench algorithms=[iq]": "bench: unknown algorithm 'iq'",
    "bench algorithms=[]": "algorithms=, seeds= and precisions= need at least one",
    "bench seconds=0": "seconds=0.0 is not above 0",
    "bench corl=nowhere": "nowhere is not a folder",
    "report": "report needs a folder. Give a run's folder, or a folder with runs",
    "report small.npz": "small.npz contains no run. Expected",
    "report .": "runs/neorl2_DMSD/td3_bc/damaged/seed_0/config.json is not",
    "report runs/none_small outt=x": "unknown option 'outt'; did you mean out?",
    "report runs/none_small out=small.npz": "small.npz/report.md could not be written: File exists",
    "report runs/none_small folders=x": "unknown option 'folders'; there are format, out",
    "report runs/neorl2_DMSD/td3_bc/damaged": "runs/neorl2_DMSD/td3_bc/damaged/seed_0/config.json",
    "data": "data needs an action: list, info <file or card>, check <file",
    "data lst": "data needs an action: list, info <file or card>, check <file",
    "data list small.npz": "data list: wrong arguments. See offline-rl data --help",
    "data list foo=1": "data list: wrong arguments. See offline-rl data --help",
    "data info": "data info: wrong arguments. See offline-rl data --help",
    "data info small.hdf5": "small.hdf5: no such file. Check the path given as the data set",
    "data info small.npz other.npz": "data info: wrong arguments. See offline-rl data --help",
    "data info small.npz foo=1": "unknown option 'foo'; there are",
    "data info cut.hdf5": "cut.hdf5: an HDF5 file that is incomplete or damaged",
    "data info task=none": "data info: wrong arguments. See offline-rl data --help",
    "data info none": "task none has no data set. Give a file with dataset=<path>",
    "data check": "data check: wrong arguments. See offline-rl data --help",
    "data check cut.npz": "cut.npz: 1 error, no warnings",
    "data check nan.npz": "nan.npz: 1 error, no warnings",
    "data check small.npz max_episode_steps=0": "small.npz: 1 error, no warnings",
    "data check small.npz action_scale=a": "action_scale='a': expected a number or null",
    "data convert small.npz": "data convert: wrong arguments. See offline-rl data --help",
    "data convert small.npz other.npz": "other.npz already exists. Choose another file, or remove",
    "data convert small.npz new.npz format=csv": "format='csv': expected one of d4rl, npz, minari",
    "data convert small.npz new.npz dataset_id=a": "dataset_id is only for format=minari, not npz",
    "data convert cut.npz new.hdf5": "cut.npz: a ZIP archive that is incomplete or damaged",
    "data convert small.npz other.npz/new.hdf5": "other.npz/new.hdf5 could not be written: File",
    "data download": "data download: wrong arguments. See offline-rl data --help",
    "data download DMSB": "unknown dataset 'DMSB'",
    "data download none": "unknown dataset 'none'",
    "data -m": "data has no flag -m; options are key=value. See offline-rl data --help",
    "robot": "unknown robot command 'robot=desk'; there are calibrate, check",
    "robot chek": "unknown robot command 'chek'; did you mean check?",
    "robot check !robot": "robot=… is missing: add the name of a robot in configs/robot",
    "robot check robot=5": "unknown robot '5'; there are desk; your own file must end in",
    "robot check robot=nowhere.yaml": "robot file nowhere.yaml does not exist",
    "robot check robot=broken.yaml": "broken.yaml is not readable as YAML",
    "robot check robot=list.yaml": "list.yaml: lines of the form name: value are expected",
    "robot check robot=key.yaml": "key.yaml: unknown option 'algorithm'; there are adapter",
    "robot check bundle=nowhere": "nowhere: no such policy bundle",
    "robot check bundle=cut.bundle": "cut.bundle is not a complete policy bundle",
    "robot check bundle=runs/neorl2_DMSD/td3_bc/default/seed_0/policy.bundle": "does not name",
    "robot check adapter=nothing": "desk.yaml: adapter is 'nothing'; expected dynamixel",
    "robot check color=red": "unknown option 'color'; there are",
    "robot check rate_hz=fast": "rate_hz='fast': expected a number or null",
    "robot check limits=nowhere.yaml": "nowhere.yaml is not readable as YAML",
    "robot check limits=list.yaml": "list.yaml: lines of the form name: value are expected",
    "robot check limits=broken.yaml": "broken.yaml is not readable as YAML",
    "robot check limits=joint.yaml": "limits: velocity: there is no joint 'nobody'. The joints are",
    "robot check runtime=tensorflow bundle=policy.bundle": "runtime='tensorflow': expected one of",
    "robot run": "bundle=… is missing: add the policy bundle",
    "robot run bundle=nowhere": "nowhere: no such policy bundle",
    "robot run bundle=cut.bundle": "cut.bundle is not a complete policy bundle",
    "robot run bundle=policy.bundle": "the bundle does not name its actions, so they cannot be",
    "robot run bundle=policy.bundle seconds=long": "seconds='long': expected a number or null",
    "robot run bundle=policy.bundle keyboard=false": "unknown option 'keyboard'; there are",
    "robot run bundle=policy.bundle start=maybe": "start='maybe': expected true or false",
    "robot record": "out=… is missing: add the file to record to",
    "robot record out=small.npz": "small.npz already exists: name another file, or remove it",
    "robot record out=new.rec seconds=long": "seconds='long': expected a number or null",
    "robot record out=new.rec rate_hz=fast": "rate_hz='fast': expected a number or null",
    "robot record out=new.rec keyboard=maybe": "unknown option 'keyboard'; there are",
    "robot record out=small.npz/new.rec": "small.npz cannot be created: File exists",
    "robot replay": "recording=… is missing: add the file to play back",
    "robot replay recording=nowhere": "nowhere cannot be read: No such file or directory",
    "robot replay recording=small.npz": "small.npz is not a robot recording",
    "robot replay recording=cut.rec": "cut.rec: the recording's header is damaged",
    "robot replay recording=new.rec start=maybe": "start='maybe': expected true or false",
    "robot calibrate !adapter robot=dask": "unknown robot 'dask'; did you mean desk?; your own",
    "robot check !adapter": "calibration … the arm with adapter=simulated",
    "robot calibrate !adapter": "port /dev/ttyUSB0: No such file or directory. Check that",
    "robot calibrate !adapter ask=1": "unknown option 'ask'; there are",
    "robot calibrate adapter=simulated": "unknown option 'adapter'; there are",
}

# Python expressions
CALLS = {
    "offline_rl.train()": "algorithm=… is missing",
    "offline_rl.train(algorithm='iq', task='none')": "unknown algorithm 'iq'; did you mean iql or",
    "offline_rl.train(algorithm='iql')": "task=… is missing",
    "offline_rl.train(algorithm='iql', task='none')": "task none has no dataset. Set",
    "train(dataset=3)": "no such file",
    "train(dataset={})": "dataset= takes a file name or a Dataset, not arrays. Use",
    "train(dataset=np.zeros(3))": "offline_rl.Dataset.from_arrays(observations, actions, rewards,",
    "offline_rl.train(algorithm=offline_rl, task='none', dataset='small.npz')": "unknown",
    "train(dataset='small.npz', seeds=(0, 0))": "seeds=[0, 0]: expected different seeds",
    "train(dataset='small.npz', num_updates='5')": "num_updates='5': expected an integer",
    "train(dataset='small.npz', num_updates=2.5)": "num_updates=2.5: expected an integer",
    "train(dataset='small.npz', hidden=[8])": "did you mean algorithm.hidden?",
    "train(dataset='small.npz', algorithm__hiden=[8])": "did you mean algorithm.hidden?",
    "train(dataset=small, action_scale=2)": "action_scale= has no effect on data in memory",
    "offline_rl.train(algorithm='iql', task='neorl2/DMSD', dataset=other)": "[5] and 3 actions",
    "train(dataset=small, out=None)": "out=None: expected text",
    "offline_rl.finetune()": "finetune needs either run=<folder> to continue from, or base=",
    "offline_rl.finetune(run='nowhere', num_env_steps=5)": "run=nowhere does not exist",
    "offline_rl.finetune(run='runs/none_small/bc/default')": "finetune needs num_env_steps=…",
    "offline_rl.load('nowhere')": "nowhere holds no seeds. Give the folder that contains seed_0",
    "offline_rl.load('small.npz')": "small.npz is a file, not the folder of a run. Load data",
    "offline_rl.load('runs/none_small/bc/default', seed=7)": "runs/none_small/bc/default has no",
    "offline_rl.load('runs/none_small/bc/default/seed_7')": "runs/none_small/bc/default/seed_7 has",
    "offline_rl.load('runs/neorl2_DMSD/td3_bc/stopped')": "runs/neorl2_DMSD/td3_bc/stopped/seed_0",
    "offline_rl.load(BC).q_values(s, a)": "bc learns no Q function",
    "offline_rl.load(BC).evaluate()": "task 'none' has no environment. Train",
    "offline_rl.load(BC).act(s[:, :1])": "observation of shape (4, 1)",
    "offline_rl.load(TD3).q_values(s, a[:, :1])": "expected [B, 6] and [B, 2]",
    "offline_rl.load(TD3).q_values(s[0], a)": "expected [B, 6] and [B, 2]",
    "offline_rl.load(TD3).evaluate(0)": "episodes=0 is not an integer of at least 1",
    "offline_rl.load(TD3).evaluate(task='Hopper-v4')": "observation of shape (10, 11)",
    "Dataset.from_arrays(s, a, s, s)": "data: rewards has shape [4, 6]; one number per step",
    "Dataset.from_arrays(s, a[:, 0], s[:, 0], 0 * s[:, 0])": "one: reshape(-1, 1)",
    "Dataset.from_arrays(s, a, a[:, 0])": "data: terminated is None. Pass an array",
    "Dataset.from_arrays(s, a, a[:, 0], s, terminals=s)": "terminated= and terminals= are the",
    "Dataset.from_arrays(s, a, a[:, 0], 0 * a[:, 0], action_scale=0)": "a number above 0",
    "Dataset.from_arrays(s, a, a[:, 0], a[:2, 0])": "data: row counts differ (observations 4",
    "Dataset.from_arrays(s, 5 * a, a[:, 0], 0 * a[:, 0])": "data: actions [4, 2] reach from",
    "Dataset.from_arrays(s, a, a[:, 0] / 0, 0 * a[:, 0])": "data: rewards has inf first in row 0",
    "Dataset.from_arrays([], [], [], [])": "data: observations have shape [0]; [N, O] is",
    "Dataset.from_arrays(None, a, a[:, 0], 0 * a[:, 0])": "data: observations is None. Pass",
    "Dataset.from_minari('nobody/nothing-v0')": "no data set",
    "policies.load('nowhere')": "nowhere: no such policy bundle",
    "policies.load('cut.bundle')": "cut.bundle is not a complete policy bundle",
    "policies.load('foreign.bundle')": "foreign.bundle is not a complete policy bundle",
    "policies.load('policy.bundle', runtime='jax')": "policy.bundle: runtime=jax is unknown",
    "policies.load('policy.bundle', color='red')": "policy.bundle: a DeterministicActor has no",
    "policies.load('policy.bundle').act(s[:, :1])": "observation of shape (4, 1), expected [B",
    "policies.load('policy.bundle').act(s * np.nan)": "the observation holds NaN or infinite",
    "policies.Player(policies.load('policy.bundle')).step(s[0, :1])": "shape (1, 1)",
    "envs.make('Hoper-v4')": "unknown task 'Hoper-v4'. Did you mean Hopper-v4",
    "envs.make('none')": "task 'none' has no environment. Train without evaluation",
    "envs.make_vector('Hopper-v4', 0)": "num_envs=0 is too small",
    "real_robot.run('cut.bundle', 'desk', adapter='simulated')": "cut.bundle is not a complete",
    "real_robot.run('policy.bundle', 'dask')": "unknown robot 'dask'; did you mean desk?; your own",
}


def complete_line(line: str) -> list[str]:
    """Return the words of a line, completed by the options in VALID."""
    import shlex

    verb, *words = shlex.split(line)
    first = words[:1] if verb in COUNTED and words and "=" not in words[0] else []
    options = words[len(first) :]
    names = {word.removeprefix("!").split("=")[0] for word in options}
    defaults = [w for w in VALID.get(verb, "").split() if w.split("=")[0] not in names]
    return [verb, *first, *defaults, *(word for word in options if not word.startswith("!"))]


def make_files(here: Path) -> None:
    """Create the files that the lines name, except runs."""
    small = dict(np.load(save_small(here / "small.npz")))
    rows = len(small["obs"])
    save_small(here / "other.npz", obs=5, act=3)
    save_small(here / "longer.npz", num_rows=600)
    for name, changes in damaged_arrays(small).items():
        kept = {k: v for k, v in (small | changes).items() if v is not None}
        np.savez(here / f"{name}.npz", **kept)
    words = ("observations", "actions", "rewards", "terminals", "timeouts")
    file_keys = ("obs", "action", "reward", "done", "truncated")
    with h5py.File(here / "whole.hdf5", "w") as file:
        for word, key in zip(words, file_keys, strict=True):
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
        "key.yaml": "algorithm: iql\ncolor: red",
        "type.yaml": "algorithm: iql\nnum_updates: many",
        "cell.yaml": "cells: [{algorithm: iql, task: neorl2/DMSD, color: red}]",
        "joint.yaml": "velocity: {nobody: 0.5}",
        "cut.json": '{"version": 1, "ce',
        "object.json": "{}",
        "cut.bundle": b"PK\x03\x04" + bytes(90),
        "foreign.bundle": "no bundle",
        "cut.rec": b"RRTICKS\n" + bytes(9),
    }
    for name, text in texts.items():
        (here / name).write_bytes(text.encode() if isinstance(text, str) else text)


def damaged_arrays(small: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return the changed arrays of each damaged file, by its name."""
    row = np.arange(len(small["obs"]))
    return {
        "pictures": {k: small[k].repeat(4, 1)[:, :16].reshape(-1, 4, 4) for k in OBSERVATIONS},
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


OBSERVATIONS = ("obs", "next_obs")
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

class Fixed(World):
    action_space = gymnasium.spaces.Box(np.float32([0, 2]), np.float32([1, 2]))

class Column(World):
    action_space = gymnasium.spaces.Box(-1, 1, (2, 1))

class Asking(World):
    def __init__(self, size):
        self.size = size

class Off(World):
    def step(self, action):
        raise ZeroDivisionError("motor off")

class Old(World):
    def step(self, action):
        return np.zeros(6, np.float32), 0.0, False, {}

class Wide(World):
    def reset(self, *, seed=None, options=None):
        return np.zeros(7, np.float32), {}

class Lost(World):
    def reset(self, *, seed=None, options=None):
        return np.full(6, np.nan, np.float32), {}

class Named(World):
    observation_space = gymnasium.spaces.Dict(a=ROOM, b=ROOM)

class Thing:
    pass
"""


def make_runs(here: Path) -> None:
    """Train the runs that the lines name in the working folder `here`. Takes a few seconds."""
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
