"""Which chat template stands in where a tokenizer has none?  ChatML, the most common form.  What it has no form for it refuses."""

_TOOLS = "the built-in ChatML template has no form for tools; pass chat_template= of a model that knows them"

CHATML = (
    "{%- macro words(content) %}"
    "{%- if content is string %}{{- content }}"
    "{%- elif content is iterable %}{%- for part in content %}"
    "{%- if part.type != 'text' %}{{- raise_exception('the built-in ChatML template prints text only, not ' + part.type) }}"
    "{%- endif %}{{- part.text }}{%- endfor %}{%- endif %}"
    "{%- endmacro %}"
    "{%- if tools %}{{- raise_exception('" + _TOOLS + "') }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.tool_calls or message.role == 'tool' %}{{- raise_exception('" + _TOOLS + "') }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' %}"
    "{%- generation %}"
    "{%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{%- endif %}"
    "{{- words(message.content) + '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}"
    "{%- else %}{{- words(message.content) + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
