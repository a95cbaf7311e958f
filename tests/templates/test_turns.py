"""Are headers and ends of turns learned from a template alone?"""

import pytest

from penstock.templates.turns import learn_turns

from .conversations import TEMPLATES, chat

LEARNED = {
    "qwen3": ("<|im_start|>assistant\n", ("<|im_end|>",)),
    "llama3": ("<|start_header_id|>assistant<|end_header_id|>\n\n", ("<|eot_id|>",)),
    "phi3": ("<|assistant|>\n", ("<|end|>",)),
    "gemma": ("<start_of_turn>model\n", ("<end_of_turn>",)),
    "gemma4": ("<|turn>model\n", ("<turn|>", "<|tool_response>")),
    "gptoss": ("<|start|>assistant", ("<|end|>", "<|return|>", "<|call|>")),
    "cohere2": (
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>",
        ("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",),
    ),
    "glm4moe": ("<|assistant|>", ("<|user|>", "<|observation|>")),
    "smolvlm": ("Assistant:", ("<end_of_utterance>",)),
    "llava_next": (" [/INST]", ("</s>",)),
}


@pytest.mark.parametrize("name", LEARNED)
def test_shapes_are_learned(name: str) -> None:
    shape = chat(name).ink.turns
    header, ends = LEARNED[name]
    assert shape.header == header
    assert set(ends) <= set(shape.ends), shape.ends


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_has_an_end(name: str) -> None:
    shape = chat(name).ink.turns
    assert shape.ends and shape.prompt.startswith(shape.header)


def test_a_template_that_shows_nothing_teaches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shape = learn_turns(lambda messages, **options: "nothing", [])
    assert (shape.header, shape.prompt, shape.ends) == ("", "", ())
    chat("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    assert "a model would not learn to stop" in caplog.text


def test_letters_that_a_template_changes_do_not_hide_its_turns() -> None:
    for how in ("m.content | replace('a', 'b')", "m.content[:8]", "m.content | upper"):
        text = "{% for m in messages %}[{{ m.role }}] {{ " + how + " }}<|im_end|>{% endfor %}"
        assert chat(text).ink.turns.ends == ("<|im_end|>",), how


def test_tags_end_a_turn_where_no_special_token_does() -> None:
    text = "{% for m in messages %}{{ m.role }}: {{ m.content }}<stop>\n{% endfor %}"
    assert chat(text).ink.turns.ends == ("<stop>",)
