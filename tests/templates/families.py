# ruff: noqa: E501 (templates are easier to read in long lines)
"""Chat templates with the structure of model families that the trl wheel does not have, written from scratch.

`«m»` and `»` mark what of message `m` is trained, as structures.py explains: behind what the generation prompt prints in that place, up to and
with the tokens that end the turn.  `CONTROL` lists their control tokens that no pattern would find.
"""

_NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
)

CONTROL = (
    *(
        "<|im_sep|>",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "[gMASK]",
        "<sop>",
        "<|start_of_role|>",
        "<|end_of_role|>",
        "<|end_of_text|>",
    ),
    *(
        "<|tool_call|>",
        "<|action_start|>",
        "<|action_end|>",
        "<|plugin|>",
        "<|end_of_turn|>",
        "<extra_id_0>",
        "<extra_id_1>",
    ),
    *(
        "<|im_system|>",
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_middle|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    *(
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "]~!b[",
        "]~b]",
        "[e~[",
        "<seed:bos>",
        "<seed:eos>",
        "<seed:think>",
    ),
    *(
        "</seed:think>",
        "[|endofturn|]",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
    *(
        "<s>",
        "<beginning_of_sentence>",
        "<end_of_sentence>",
        "<|endoftext|>",
        "<｜hy_User｜>",
        "<｜hy_Assistant｜>",
        "<｜hy_end｜>",
    ),
)

FAMILIES = {
    # The first system message and, with tools, the first user message are printed outside the loop; one call per message.
    "llama 3.1": "{{ bos_token }}{% if messages[0].role == 'system' %}{% set told = messages[0].content | trim %}{% set messages = messages[1:] %}"
    "{% else %}{% set told = '' %}{% endif %}<|start_header_id|>system<|end_header_id|>\n\n{% if tools %}Environment: ipython\n{% endif %}"
    "Today Date: 26 Jul 2024\n\n{{ told }}<|eot_id|>{% if tools %}{% set first = messages[0].content | trim %}{% set n = messages[0] %}{% set messages = messages[1:] %}"
    "<|start_header_id|>user<|end_header_id|>\n\nGiven these functions:\n\n{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}«n»{{ first }}<|eot_id|>»{% endif %}"
    "{% for m in messages %}{% if m.role not in ('tool', 'ipython') and not m.tool_calls %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n«m»{{ m.content | trim }}<|eot_id|>»"
    "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}{% set f = m.tool_calls[0].function %}"
    '<|start_header_id|>assistant<|end_header_id|>\n\n«m»{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>»'
    '{% else %}<|start_header_id|>ipython<|end_header_id|>\n\n"«m»{{ (m.content | tojson)[1:] }}<|eot_id|>»{% endif %}{% endfor %}'
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "gemma 2": "{{ bos_token }}"
    + _NO_SYSTEM
    + "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}<start_of_turn>{{ role }}\n«m»{{ m.content | trim }}<end_of_turn>»\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    # The end of the text is printed where no answer is asked for.
    "phi 3": "{% for m in messages %}<|{{ m.role }}|>\n«m»{{ m.content }}<|end|>»\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
    "phi 4": "{% for m in messages %}{% if m.role == 'system' %}<|im_start|>system<|im_sep|>«m»{{ m.content }}<|im_end|>»{% elif m.role == 'user' %}"
    "<|im_start|>user<|im_sep|>«m»{{ m.content }}<|im_end|>»{% elif m.role == 'assistant' %}<|im_start|>assistant<|im_sep|>«m»{{ m.content }}<|im_end|>»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}",
    # Results of one round share a turn of the system, numbered over the conversation.
    "command r": "{{ bos_token }}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% set told = messages[0].content %}{% else %}{% set rest = messages %}{% set told = 'Be helpful.' %}{% endif %}"
    "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ told }}{% for t in tools or [] %}\n{{ t.function.name }}{% endfor %}<|END_OF_TURN_TOKEN|>"
    "{% set ns = namespace(n=0) %}{% for m in rest %}{% if m.role == 'user' %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>«m»{{ m.content.strip() }}<|END_OF_TURN_TOKEN|>»"
    "{% elif m.role == 'assistant' and m.tool_calls %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>«m»{% if m.content %}{{ m.content.strip() }}\n{% endif %}Action: ```json\n["
    "{% for c in m.tool_calls %}{{ {'tool_name': c.function.name, 'parameters': c.function.arguments} | tojson }}{{ ',\n' if not loop.last }}{% endfor %}]```<|END_OF_TURN_TOKEN|>»"
    "{% elif m.role == 'assistant' %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>«m»{{ m.content.strip() }}<|END_OF_TURN_TOKEN|>»"
    "{% elif m.role == 'tool' %}{% if loop.previtem is undefined or loop.previtem.role != 'tool' %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>{% endif %}\nDocument: {{ ns.n }}\n«m»{{ m.content }}"
    "{% set ns.n = ns.n + 1 %}{% if loop.nextitem is undefined or loop.nextitem.role != 'tool' %}</results><|END_OF_TURN_TOKEN|>{% endif %}»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    # Actions and thoughts between tokens of their own; the prompt ends before them.
    "command r7b": "{% for m in messages %}{% if m.role == 'user' %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>«m»{{ m.content }}<|END_OF_TURN_TOKEN|>»{% elif m.role == 'assistant' %}"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>«m»{% if m.tool_calls %}<|START_ACTION|>[{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]<|END_ACTION|>"
    "{% else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>»{% else %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>«m»{{ m.content }}<|END_OF_TURN_TOKEN|>»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    # The prompt ends before the line break; a call names its tool there.  Nothing ends a turn.
    "glm 4": "[gMASK]<sop>{% if tools %}<|system|>\nTools:{% for t in tools %}\n{{ t.function | tojson }}{% endfor %}{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n«m»{{ m.content }}»"
    "{% elif m.tool_calls %}<|assistant|>«m»{% for c in m.tool_calls %}{{ '<|assistant|>' if not loop.first }}{{ c.function.name }}\n{{ c.function.arguments | tojson }}{% endfor %}»"
    "{% elif m.role == 'assistant' %}<|assistant|>«m»\n{{ m.content }}»{% else %}<|{{ m.role }}|>\n«m»{{ m.content }}»{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    # The last message prints the generation prompt.
    "granite 3": "{% if messages[0].role == 'system' %}{% set told = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set told = 'You are Granite.' %}{% set rest = messages %}{% endif %}"
    "<|start_of_role|>system<|end_of_role|>{{ told }}<|end_of_text|>\n{% if tools %}<|start_of_role|>tools<|end_of_role|>{{ tools | tojson(indent=4) }}<|end_of_text|>\n{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}<|start_of_role|>user<|end_of_role|>«m»{{ m.content }}<|end_of_text|>»\n{% elif m.role == 'assistant' %}<|start_of_role|>assistant<|end_of_role|>«m»"
    "{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]{% else %}{{ m.content }}{% endif %}<|end_of_text|>»\n"
    "{% elif m.role == 'tool' %}<|start_of_role|>tool_response<|end_of_role|>«m»{{ m.content }}<|end_of_text|>»\n{% endif %}"
    "{% if loop.last and add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}{% endfor %}",
    "hermes": "{% macro kind(t) %}{% if t.type == 'array' %}list{% else %}{{ t.type }}{% endif %}{% endmacro %}{% if tools %}<|im_start|>system\nFunctions:{% for t in tools %}\n<tools>{{ t.function.name }}("
    "{% for k, v in t.function.parameters.properties.items() %}{{ k }}: {{ kind(v) }}{{ ', ' if not loop.last }}{% endfor %})</tools>{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role in ('user', 'system', 'developer') or (m.role == 'assistant' and not m.tool_calls) %}<|im_start|>{{ m.role }}\n«m»{{ m.content }}<|im_end|>»\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n«m»{% if m.content %}{{ m.content }}\n{% endif %}{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{{ '\n' if not loop.last }}{% endfor %}<|im_end|>»\n"
    "{% elif m.role == 'tool' %}{% if loop.previtem and loop.previtem.role != 'tool' %}<|im_start|>tool\n{% endif %}<tool_response>\n«m»{{ m.content }}\n</tool_response>{% if not loop.last %}\n{% endif %}"
    "{% if not loop.last and loop.nextitem.role != 'tool' %}<|im_end|>{% elif loop.last %}<|im_end|>{% endif %}»{{ '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # Rounds with numbers; the question prints the label of its answer; nothing ends a turn.
    "chatglm 2": "{% for m in messages %}{% if m.role == 'user' %}[Round {{ loop.index // 2 + 1 }}]\n\n问：«m»{{ m.content }}»\n\n答：{% elif m.role == 'assistant' %}«m»{{ m.content }}»\n\n{% endif %}{% endfor %}",
    # An answer begins with a blank that the prompt does not print.
    "openchat": "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}«m»{{ m.content }}<|end_of_turn|>»{% else %}GPT4 Correct {{ m.role.title() }}:{% if m.role == 'assistant' %}«m» {% else %} «m»{% endif %}{{ m.content }}<|end_of_turn|>»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}GPT4 Correct Assistant:{% endif %}",
    "internlm 2": "<s>{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>environment name=<|plugin|>\n«m»{{ m.content }}<|im_end|>»\n{% else %}<|im_start|>{{ m.role }}\n«m»{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<|action_start|><|plugin|>\n{{ c.function | tojson }}<|action_end|>{% endfor %}<|im_end|>»\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # Labels without tokens, and a line break before every message but the first.
    "falcon": "{% for m in messages %}{% if not loop.first %}\n{% endif %}{% if m.role == 'system' %}«m»{{ m.content }}»{% elif m.role == 'user' %}User: «m»{{ m.content }}»{% elif m.role == 'assistant' %}Falcon:«m» {{ m.content }}»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}\nFalcon:{% endif %}",
    "zephyr": "{% for m in messages %}\n{% if m.role == 'user' %}\n<|user|>\n«m»{{ m.content + eos_token }}»\n{% elif m.role == 'system' %}\n<|system|>\n«m»{{ m.content + eos_token }}»\n{% elif m.role == 'assistant' %}\n<|assistant|>\n«m»{{ m.content + eos_token }}»\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "vicuna": "{% if messages[0].role == 'system' %}{{ messages[0].content }} {% set rest = messages[1:] %}{% else %}A chat of a user and an assistant. {% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}USER: «m»{{ m.content | trim }}» {% elif m.role == 'assistant' %}ASSISTANT:«m» {{ m.content | trim }}{{ eos_token }}»{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    "olmo 2": "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}<|system|>\n«m»{{ m.content }}»\n{% elif m.role == 'user' %}<|user|>\n«m»{{ m.content }}»\n{% elif m.role == 'assistant' %}{% if not loop.last %}<|assistant|>\n«m»{{ m.content + eos_token }}»\n{% else %}"
    "<|assistant|>\n«m»{{ m.content + eos_token }}»{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}{% endfor %}",
    # The token that begins the next turn would end this one, but the tokenizer does not list it.
    "nemotron 4": "<extra_id_0>System\n{% for m in messages %}{% if m.role == 'system' %}«m»{{ m.content | trim }}»\n{% endif %}{% endfor %}{% for t in tools or [] %}<tool>{{ t | tojson }}</tool>\n{% endfor %}\n"
    "{% for m in messages %}{% if m.role == 'user' %}<extra_id_1>User\n«m»{{ m.content | trim }}»\n{% elif m.role == 'assistant' %}<extra_id_1>Assistant\n«m»{% if m.content %}{{ m.content | trim }}\n{% endif %}"
    "{% for c in m.tool_calls or [] %}<toolcall>{{ c.function | tojson }}</toolcall>\n{% endfor %}»{% elif m.role == 'tool' %}<extra_id_1>Tool\n«m»{{ m.content | trim }}»\n{% endif %}{% endfor %}{% if add_generation_prompt %}<extra_id_1>Assistant\n{% endif %}",
    # Channels: the prompt ends before the channel; thoughts are turns of their own; the last answer returns.
    "harmony": "{% set ns = namespace(tool='') %}{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant«m»{% if m.reasoning_content %}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|><|start|>assistant{% endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ '<|start|>assistant' if not loop.first }} to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% set ns.tool = c.function.name %}{% endfor %}"
    "{% else %}<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}»{% elif m.role == 'tool' %}<|start|>functions.{{ ns.tool }} to=assistant<|channel|>commentary<|message|>«m»{{ m.content }}<|end|>»"
    "{% else %}<|start|>{{ m.role }}<|message|>«m»{{ m.content }}<|end|>»{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    "kimi k2": "{% macro say(m) %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}{% endmacro %}"
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>{% endif %}"
    "{% if m.role == 'system' %}<|im_system|>system<|im_middle|>{% elif m.role == 'user' %}<|im_user|>user<|im_middle|>{% elif m.role == 'assistant' %}<|im_assistant|>assistant<|im_middle|>{% else %}<|im_system|>{{ m.name or m.role }}<|im_middle|>{% endif %}"
    "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}«m»{{ say(m) }}{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>{% endif %}<|im_end|>»{% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
    # The prompt opens a thought; only turns behind the last question have one.
    "minimax m2": "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}]~!b[]~b]system\n{{ messages[0].content if messages[0].role == 'system' else 'Be helpful.' }}[e~[\n"
    "{% for m in messages %}{% if m.role == 'assistant' %}]~b]ai\n{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n«m»{{ m.reasoning_content }}\n</think>\n\n{{ m.content or '' }}{% elif m.content is string and m.content.startswith('<think>\n') %}<think>\n«m»{{ m.content[8:] }}{% else %}«m»{{ m.content or '' }}{% endif %}{% if m.tool_calls %}\n<tool_call>\n{% for c in m.tool_calls %}"
    '<invoke name="{{ c.function.name }}">{% for k, v in c.function.arguments.items() %}<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>{% endfor %}</invoke>\n{% endfor %}</tool_call>{% endif %}[e~[»\n'
    "{% elif m.role == 'tool' %}{% if loop.previtem is undefined or loop.previtem.role != 'tool' %}]~b]tool{% endif %}\n<response>«m»{{ m.content }}</response>{% if loop.last or loop.nextitem.role != 'tool' %}[e~[{% endif %}»{{ '\n' }}"
    "{% elif m.role == 'user' %}]~b]user\n«m»{{ m.content }}[e~[»\n{% endif %}{% endfor %}{% if add_generation_prompt %}]~b]ai\n<think>\n{% endif %}",
    "seed oss": "{% for m in messages %}<seed:bos>{{ m.role }}\n«m»{% if m.role == 'assistant' and m.reasoning_content %}<seed:think>{{ m.reasoning_content | trim }}</seed:think>{% endif %}{% if m.content %}{{ m.content | trim }}{% endif %}"
    "{% for c in m.tool_calls or [] %}\n<seed:tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>{% endfor %}<seed:eos>»{% endfor %}"
    "{% if add_generation_prompt %}<seed:bos>assistant\n{% endif %}",
    # The system message is folded into the first question; an answer begins and ends with a blank of its own.
    "llama 2": "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% set told = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' %}{% else %}{% set rest = messages %}{% set told = '' %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ told if loop.first }}«m»{{ m.content | trim }} [/INST]»{% else %}«m» {{ m.content | trim }} {{ eos_token }}»{% endif %}{% endfor %}",
    "alpaca": "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if m.role == 'user' %}### Instruction:\n«m»{{ m.content | trim }}»\n\n"
    "{% elif m.role == 'assistant' %}### Response:\n«m»{{ m.content | trim }}{{ eos_token }}»\n\n{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}",
    "exaone": "{% for m in messages %}{% if loop.first and m.role != 'system' %}[|system|][|endofturn|]\n{% endif %}[|{{ m.role }}|]«m»{{ m.content }}{% if m.role == 'user' %}»{{ '\n' }}{% else %}[|endofturn|]»\n{% endif %}{% endfor %}{% if add_generation_prompt %}[|assistant|]{% endif %}",
    # Answers have no header at all; results too, the next answer follows them at once.
    "mistral small": "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]«m»{{ m.content }}[/SYSTEM_PROMPT]»{% elif m.role == 'user' %}[INST]«m»{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}[/INST]»"
    "{% elif m.role == 'assistant' %}«m»{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}»"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]«m»{{ m.content }}[/TOOL_RESULTS]»{% endif %}{% endfor %}",
    "minimax text": "{% for m in messages %}{% if m.role == 'system' %}<beginning_of_sentence>system ai_setting=assistant\n«m»{{ m.content }}<end_of_sentence>»\n{% elif m.role == 'user' %}<beginning_of_sentence>user name=user\n«m»{{ m.content }}<end_of_sentence>»\n"
    "{% elif m.role == 'assistant' %}<beginning_of_sentence>ai name=assistant\n«m»{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}{% endfor %}{% endif %}<end_of_sentence>»\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<beginning_of_sentence>ai name=assistant\n{% endif %}",
    "hunyuan": "{% for m in messages %}{% if m.role == 'system' %}«m»{{ m.content }}»\n{% elif m.role == 'user' %}<｜hy_User｜>«m»{{ m.content }}{% if not loop.last %}»{% endif %}{% elif m.role == 'assistant' %}<｜hy_Assistant｜>«m»{{ m.content }}<｜hy_end｜>»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜hy_Assistant｜>{% else %}<｜hy_end｜>»{% endif %}",
    # Labels and a line break; the end stands before the line break of the next message.
    "ernie": "<s>{% for m in messages %}{% if m.role == 'user' %}User: «m»{{ m.content }}»\n{% elif m.role == 'assistant' %}Assistant: «m»{{ m.content }}<end_of_sentence>»{% elif m.role == 'system' %}«m»{{ m.content }}»\n{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}",
    # Thoughts of earlier turns are cut out of the content; an empty thought stands in the last answer, not in the prompt.
    "smollm 3": "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% set said = m.content or '' %}«m»{{ said.split('</think>')[-1].lstrip('\n') if '</think>' in said and not loop.last else said }}<|im_end|>»\n{% else %}<|im_start|>{{ m.role }}\n«m»{{ m.content }}<|im_end|>»\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # Arguments one by one; results as a user's turn.
    "qwen coder": "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n«m»{% if m.content is string and m.content | trim %}{{ m.content | trim }}\n{% endif %}{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
    "{{ v | tojson if v is mapping or v is not string and v is iterable else v | string }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}<|im_end|>»\n{% elif m.role == 'tool' %}{% if loop.previtem and loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}\n<tool_response>\n«m»{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}»{% else %}<|im_start|>{{ m.role }}\n«m»{{ m.content }}<|im_end|>»\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}
