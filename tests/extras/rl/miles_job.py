"""The rollout functions of the real miles (or slime) on Prompts: python miles_job.py FOLDER TOKENIZER PATH_OF_THE_FRAMEWORK [slime].

The framework's own code runs: its data source, its standard rollout functions (over-sampling, dynamic filter, abort, partial rollouts),
its SFT rollout, and its fully asynchronous rollout where this version has one.  Replaced are only the inference engine
(`generate_and_rm_group`, which sends requests) and the router's HTTP.  Prints what was found as JSON.
"""

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import json
import random
import sys
import types
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pydantic

folder, tokenizer, framework_path = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
framework = sys.argv[4] if len(sys.argv) > 4 else "miles"
sys.path.insert(0, framework_path)
if framework == "miles":
    sys.modules["slime"] = None  # another package has this name on the index


class EngineFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand in for the packages of the inference engine and of rewards, which are imported and not called here."""

    names = ("sglang", "sglang_router", "pybase64", "pylatexenc", "transfer_queue")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__version__ = "0.5.0"
        module.__getattr__ = self.member
        return module

    def exec_module(self, module): ...

    @staticmethod
    def member(name):
        if name.startswith("__"):
            raise AttributeError(name)
        # a model: newer versions of miles pass tools through one of sglang's
        return type(name, (pydantic.BaseModel,), {"model_config": {"extra": "allow"}})


sys.meta_path.insert(0, EngineFinder())

import penstock as ps  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.extras.rl import slime as adapter  # noqa: E402

data_source = importlib.import_module(f"{framework}.rollout.data_source")
sglang_rollout = importlib.import_module(f"{framework}.rollout.sglang_rollout")
sft_rollout = importlib.import_module(f"{framework}.rollout.sft_rollout")
Sample = adapter.Sample

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
ROWS = [
    {
        "prompt": [{"role": "user", "content": f"Question {n}? " + "long " * (n % 7)}],
        "text": f"Text {n} " + "long " * (n % 7),
        "picture": [{"role": "user", "content": f"See <image> number {n}"}],
        "image_files": [f"{n}.png"],
        "gold": n,
        "meta": {"source": n % 3},
        **({"tools": TOOLS if n % 2 else json.dumps(TOOLS)} if n % 3 == 0 else {}),
    }
    for n in range(40)
]
FILE = folder / "rows.jsonl"
FILE.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
TEMPLATE = folder / "other.jinja"
TEMPLATE.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant]")


class Arguments(Namespace):
    """Arguments of the framework; those that are not set have no value there either."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 1 if name.endswith(("concurrency", "num_gpus", "per_engine")) else None


def arguments(**changes):
    found = {
        "prompt_data": str(FILE),
        "input_key": "prompt",
        "label_key": "gold",
        "metadata_key": "meta",
        "tool_key": "tools",
        "multimodal_keys": None,
        "apply_chat_template": False,
        "apply_chat_template_kwargs": {},
        "chat_template_path": None,
        "rollout_max_prompt_len": None,
        "rollout_global_dataset": True,
        "rollout_shuffle": False,
        "rollout_seed": 3,
        "n_samples_per_prompt": 2,
        "hf_checkpoint": tokenizer,
        "dump_details": None,
        "buffer_filter_path": None,
        "save": str(folder / "save"),
        "load": str(folder / "save"),
        "rollout_batch_size": 4,
        "over_sampling_batch_size": 6,
        "partial_rollout": True,
        "rollout_function_path": f"{framework}.rollout.sglang_rollout.generate_rollout",
        "rollout_sample_filter_path": f"{adapter.__name__}.mark_trained",
        "rollout_all_samples_process_path": f"{adapter.__name__}.settle",
        "sglang_router_ip": "none",
        "sglang_router_port": 0,
        "use_miles_router": True,
        "loss_mask_type": "qwen",
        "fully_async": False,
        "multi_lora": False,
    }
    return Arguments(**{**found, **changes})


# M2: the same samples as the framework's own data source

CASES = {
    "messages": {},
    "chat template": {"apply_chat_template": True},
    "text in a chat template": {"apply_chat_template": True, "input_key": "text"},
    "variables of the template": {
        "apply_chat_template": True,
        "apply_chat_template_kwargs": {"shout": True},
    },
    "no tools": {"apply_chat_template": True, "tool_key": None},
    "media": {"input_key": "picture", "multimodal_keys": {"image": "image_files"}},
    "media in a template": {
        "input_key": "picture",
        "multimodal_keys": {"image": "image_files"},
        "apply_chat_template": True,
    },
    "short prompts": {"apply_chat_template": True, "rollout_max_prompt_len": 60},
    "short texts": {"input_key": "text", "rollout_max_prompt_len": 9},
    "messages have no length": {"rollout_max_prompt_len": 3},
    "no label": {"label_key": None, "metadata_key": "nothing"},
    "a slice": {"prompt_data": f"{FILE}@[5:17]"},
}
if framework == "miles":
    CASES["another template"] = {"apply_chat_template": True, "chat_template_path": str(TEMPLATE)}


def shown(samples):
    return [
        [(s.prompt, s.label, s.metadata, s.multimodal_inputs) for s in group] for group in samples
    ]


def compare():
    found = {}
    for name, changes in CASES.items():
        args = arguments(**changes)
        theirs = data_source.RolloutDataSource(args)
        ours = adapter.PromptsDataSource(args)
        if (
            theirs.dataset.samples is False
        ):  # miles 0.0.2 breaks on messages with a length; later ones keep all
            theirs.dataset.samples = theirs.dataset.origin_samples = data_source.RolloutDataSource(
                arguments()
            ).dataset.samples
        count = len(theirs.dataset)
        same = shown(theirs.get_samples(count)) == shown(ours.get_samples(count))
        found[name] = {
            "same": same,
            "theirs": count,
            "ours": len(ours.dataset),
            "filtered": ours.prompts.filtered.total(),
        }
    return found


# M3: the number of rollouts in an epoch


def rollouts_per_epoch():
    """Ask the rollout manager, which is a class for Ray.  Other versions than the test's need more packages."""
    try:
        manager = importlib.import_module(f"{framework}.ray.rollout").RolloutManager
    except (AttributeError, ImportError):
        return None
    args = arguments()
    source = adapter.PromptsDataSource(args)
    kind = manager.__ray_metadata__.modified_class
    return kind.get_num_rollout_per_epoch(Namespace(args=args, data_source=source))


# M1, M4: rollouts, killed and resumed


class Killed(BaseException):
    """The process is gone."""


rng = random.Random(5)


async def generate(state, group, *args, **options):
    """Take the engine's place: some groups take long; what is aborted has some tokens."""
    is_aborted = lambda: getattr(state, "aborted", False) or GENERATE_STATE[0].aborted  # noqa: E731
    for _ in range(rng.choice([1, 2, 3, 200])):
        await asyncio.sleep(0)
        if is_aborted():
            break
    for sample in group:
        sample.tokens.append(7)
        sample.response = "x"
        sample.reward = 1
        sample.status = Sample.Status.ABORTED if is_aborted() else Sample.Status.COMPLETED
    ABORTED[0] += is_aborted()
    if NESTED[0] and not is_aborted():  # as generate functions of several agents do
        return [[sample] for sample in group]
    return group


NESTED = [False]
ABORTED = [0]  # groups
GENERATE_STATE = [Namespace(aborted=False)]


async def fetch(*args, **options):
    return {"urls": [], "workers": []}


async def nothing(*args, **options):
    return None


def keep(args, samples, **options):
    """The dynamic filter: leaves out some prompts."""
    first = samples[0][0] if isinstance(samples[0], list) else samples[0]
    return first.label % 5 != 0


keep_and_drop = adapter.drop_filtered(keep)
sys.modules["job"] = sys.modules["__main__"]  # where the arguments name functions


def run_standard(args, rollout_id, source):
    output = sglang_rollout.generate_rollout(args, rollout_id, source)
    return getattr(output, "samples", output)


def make_class_api():
    """Return miles' newer rollout function, which the rollout manager makes once for each life."""
    common = importlib.import_module("miles.rollout.inference_rollout.inference_rollout_common")
    train = importlib.import_module("miles.rollout.inference_rollout.inference_rollout_train")
    base = importlib.import_module("miles.rollout.base_types")
    train.generate_and_rm_group = generate
    train.get = fetch
    train.dumper_utils.configure_sglang = nothing
    train.recompute_samples_rollout_logprobs_via_prefill = nothing
    made = {}

    def run(args, rollout_id, source):
        if made.get("source") is not source:
            made["source"] = source
            made["fn"] = common.InferenceRolloutFn(
                base.RolloutFnConstructorInput(args=args, data_source=source)
            )
        return asyncio.run(made["fn"](base.RolloutFnTrainInput(rollout_id=rollout_id))).samples

    return run


def run_sft(args, rollout_id, source):
    return sft_rollout.generate_rollout(args, rollout_id, source)


def live(run, args, lives, *, is_async=False):
    """Train over several lives; return the ordinals trained, without what a kill has undone, and the last life's counts."""
    trained, rollout_id, source = {}, 0, None
    ABORTED[0] = 0
    for life, length in enumerate(lives):
        source = adapter.PromptsDataSource(args)
        source.load(rollout_id - 1)
        for number in range(length):
            samples = run(args, rollout_id, source)
            flat = [one for group in samples for one in flattened(group)]
            if is_async:  # as log_rollout_data does, after each rollout
                adapter.log_trained(rollout_id, args, flat, None, 1.0)
            ordinals = sorted({sample.group_index for sample in flat})
            if number < length - 1 or life == len(lives) - 1:
                source.save(rollout_id)
                trained[rollout_id] = ordinals
                rollout_id += 1
            # else: killed before this rollout was saved
    counts = source.prompts.counts
    times = Counter(ordinal for ordinals in trained.values() for ordinal in ordinals)
    return {
        "rollouts": len(trained),
        "trained": sum(times.values()),
        "most": max(times.values()),
        "prompts": len(times),
        "done": counts["done"],
        "dropped": counts["dropped"],
        "leased": counts["leased"],
        "returned": counts["returned"],
        "next": counts["next"],
        "aborted": ABORTED[0],
    }


def flattened(group):
    return [
        one
        for sample in group
        for one in (flattened(sample) if isinstance(sample, list) else [sample])
    ]


def refusals():
    found = {}
    for name, changes in {
        "global": {"rollout_global_dataset": False},
        "buffer": {"buffer_filter_path": "mine.first"},
        "lora": {"multi_lora": True},
        "data": {"prompt_data": None},
        "input": {"input_key": "question"},
        "label": {"label_key": "answer"},
        "media": {"input_key": "picture", "multimodal_keys": {"image": "text"}},
    }.items():
        with suppress(KeyError):
            try:
                adapter.PromptsDataSource(arguments(**changes)).get_samples(1)
            except PenstockError as error:
                found[name] = str(error)

    class Long(adapter.PromptsDataSource):
        def open_prompts(self, args):
            return ps.Prompts(ps.open(ROWS), repeats=2, shuffle=False)

    limited = arguments(apply_chat_template=True, rollout_max_prompt_len=1)
    for name, action in {
        "long": lambda: Long(limited).get_samples(1),
        "unsettled": lambda: adapter.PromptsDataSource(arguments()).save(0),
        "unsettled async": lambda: adapter.PromptsDataSource(arguments(fully_async=True)).save(0),
        "stranger": lambda: adapter.settle(None, [], data_source.RolloutDataSource.get_samples),
        "no source": lambda: adapter.log_trained(0, arguments(), [], None, 0),
    }.items():
        try:
            action()
        except PenstockError as error:
            found[name] = str(error)
    return found


def fully_async():
    """Run miles' FullyAsyncRolloutFn; only newer versions have it."""
    try:
        module = importlib.import_module("miles.rollout.fully_async_rollout")
    except ImportError:
        return None
    base = importlib.import_module("miles.rollout.base_types")
    module.generate_and_rm_group = generate
    loop = asyncio.new_event_loop()
    made = {}

    def run(args, rollout_id, source):
        if made.get("source") is not source:
            made["source"] = source
            made["fn"] = module.FullyAsyncRolloutFn(
                base.RolloutFnConstructorInput(args=args, data_source=source)
            )
        call = made["fn"](
            base.RolloutFnTrainInput(rollout_id=rollout_id, weight_version=rollout_id)
        )
        return loop.run_until_complete(call).samples

    args = arguments(
        fully_async=True,
        rollout_function_path="miles.rollout.fully_async_rollout.FullyAsyncRolloutFn",
        async_unused_samples_handler="retry",
        async_data_buffer_capacity_factor=2.0,
        rollout_sample_filter_path=None,
        rollout_all_samples_process_path=None,
        dynamic_sampling_filter_path="job.keep_and_drop",
        save=str(folder / "async"),
        load=str(folder / "async"),
    )
    return live(run, args, [4, 3, 5], is_async=True)


def slime_fully_async():
    module = importlib.import_module("slime.rollout.fully_async_rollout")
    module.generate_and_rm_group = generate
    module.get_rollout_num_engines = lambda args: 4
    made = {}

    def run(args, rollout_id, source):
        if made.get("source") is not source:
            module._stop_global_worker()
            made["source"] = source
        return module.generate_rollout_fully_async(args, rollout_id, source)

    args = arguments(
        rollout_function_path="slime.rollout.fully_async_rollout.generate_rollout_fully_async",
        sglang_server_concurrency=4,
        save=str(folder / "async"),
        load=str(folder / "async"),
    )
    found = live(run, args, [4, 3, 5], is_async=True)
    module._stop_global_worker()
    return found


sglang_rollout.generate_and_rm_group = generate
sglang_rollout.get = fetch
sglang_rollout.post = nothing
for name in ("recompute_samples_rollout_logprobs_via_prefill", "prefill_logprobs"):
    if hasattr(sglang_rollout, name):
        setattr(sglang_rollout, name, nothing)
if hasattr(sglang_rollout, "dumper_utils"):
    sglang_rollout.dumper_utils.configure_sglang = nothing
GENERATE_STATE[0] = sglang_rollout.GenerateState(arguments())

LIVES = [4, 3, 5]
result = {"compare": compare(), "refused": refusals(), "per epoch": rollouts_per_epoch()}
for partial in (True, False):
    for nested in (False, True):
        NESTED[0] = nested
        where = str(folder / f"{partial}-{nested}")
        changes = {
            "partial_rollout": partial,
            "dynamic_sampling_filter_path": "job.keep",
            "save": where,
            "load": where,
        }
        result[f"standard, partial={partial}, nested={nested}"] = live(
            run_standard, arguments(**changes), LIVES
        )
NESTED[0] = False
if framework == "miles":
    GENERATE_STATE[0] = Namespace(aborted=False)
    where = str(folder / "class")
    changes = {"dynamic_sampling_filter_path": "job.keep", "save": where, "load": where}
    result["class"] = live(make_class_api(), arguments(**changes), LIVES)
sft = arguments(
    rollout_function_path=f"{framework}.rollout.sft_rollout.generate_rollout",
    n_samples_per_prompt=1,
    input_key="messages",
    save=str(folder / "sft"),
    load=str(folder / "sft"),
    prompt_data=str(folder / "chats.jsonl"),
    label_key=None,
)
turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
(folder / "chats.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 30)
result["sft"] = live(run_sft, sft, LIVES)
result["fully async"] = fully_async() if framework == "miles" else slime_fully_async()
print(json.dumps(result))
