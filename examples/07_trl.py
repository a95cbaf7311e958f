"""trl's SFTTrainer, fed by a Loader of conversations: only the assistant's words are trained, and nothing is tokenized or packed twice."""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig

import penstock as ps
from penstock.trainers.trl import LoaderSFTTrainer

SPECIAL = ["<|user|>", "<|assistant|>", "<|end|>"]
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
RECORDS = [
    {
        "messages": [
            {"role": "user", "content": f"How much water passes gate {n}?"},
            {
                "role": "assistant",
                "content": f"Gate {n} lets {n % 13} cubic metres through." * (1 + n % 4),
            },
        ]
    }
    for n in range(80)
]


def make_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [m["content"] for r in RECORDS for m in r["messages"]]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def main(folder: Path) -> None:
    make_tokenizer(folder / "tokenizer")
    store = ps.prepare(
        RECORDS,
        tokenizer=folder / "tokenizer",
        template="chat",
        cache_dir=folder / "cache",
        num_proc=1,
    )
    loader = ps.Loader(store, batch_size=2, max_length=128, epochs=1)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    arguments = SFTConfig(
        output_dir=str(folder / "run"), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    trainer = LoaderSFTTrainer(
        model=LlamaForCausalLM(config), args=arguments, processing_class=tokenizer, loader=loader
    )
    print(
        f"{trainer.train().global_step} steps, {loader.metrics.as_dict()['trained_tokens']} tokens trained: {store}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
