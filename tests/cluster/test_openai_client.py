# SPDX-License-Identifier: Apache-2.0
"""The OpenAI Python client, unchanged, against a real worker."""
import openai
import pytest

QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(cluster):
    return openai.OpenAI(base_url=cluster.url() + "/v1", api_key="none", max_retries=0, timeout=180)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_models_are_listed_and_found_by_name(client, model):
    assert client.models.retrieve(model).id == model


def test_a_completion_has_text_and_usage(client, model):
    reply = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in reply.choices[0].text
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 8 and reply.usage.prompt_tokens == 5
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    assert reply.usage.model_extra["assay"]["drafted_tokens"] > 0


def test_a_stream_gives_the_same_text_as_a_whole_answer(client, model):
    arguments = dict(model=model, messages=QUESTION, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**arguments)
    events = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content and text
    assert events[0].choices[0].delta.role == "assistant"
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == whole.choices[0].finish_reason
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_logprobs_have_a_row_for_each_token(client, model):
    reply = client.completions.create(model=model, prompt="Once upon a", max_tokens=6, temperature=0, logprobs=3)
    logprobs = reply.choices[0].logprobs
    assert "".join(logprobs.tokens) == reply.choices[0].text
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 6
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        assert chosen <= 0 and chosen == max(top.values())  # greedy takes the most likely


def test_chat_logprobs_are_in_the_stream_and_in_the_whole_answer(client, model):
    arguments = dict(model=model, messages=QUESTION, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    whole = client.chat.completions.create(**arguments).choices[0].logprobs.content
    streamed = [entry for event in client.chat.completions.create(**arguments, stream=True)
                for entry in (event.choices[0].logprobs.content if event.choices[0].logprobs else [])]
    assert [(entry.token, entry.logprob) for entry in whole] == [(entry.token, entry.logprob) for entry in streamed]
    assert all(len(entry.top_logprobs) == 2 and entry.bytes is not None for entry in whole)


def test_equal_seeds_give_equal_samples_and_choices_differ(client, model):
    arguments = dict(model=model, prompt="My favourite animal is", max_tokens=12, temperature=1.2, n=3, seed=11)
    first = [choice.text for choice in client.completions.create(**arguments).choices]
    assert first == [choice.text for choice in client.completions.create(**arguments).choices]
    assert len(set(first)) > 1


def test_a_stop_string_ends_the_answer_before_it(client, model):
    arguments = dict(model=model, prompt="1, 2, 3, 4, 5, 6,", max_tokens=24, temperature=0)
    whole = client.completions.create(**arguments)
    assert " 9" in whole.choices[0].text
    cut = client.completions.create(**arguments, stop=[" 9", "never"])
    assert cut.choices[0].text == whole.choices[0].text.split(" 9")[0]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < whole.usage.completion_tokens
    events = client.completions.create(**arguments, stop=" 9", stream=True)
    assert "".join(event.choices[0].text for event in events) == cut.choices[0].text


def test_a_prompt_of_token_ids_equals_its_text(client, model):
    text = client.completions.create(model=model, prompt="The sea", max_tokens=6, temperature=0,
                                     extra_body={"assay": {"logits_hash": True}})
    tokens = text.choices[0].model_extra["assay"]["tokens"]
    again = client.completions.create(model=model, prompt=tokens, max_tokens=4, temperature=0)
    assert again.usage.prompt_tokens == len(tokens)


def test_errors_raise_the_clients_exceptions_and_name_the_parameter(client, model):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=model, prompt="x", temperature=9)
    assert error.value.param == "temperature" and "0 (greedy) to 2" in str(error.value)
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="another", prompt="x")
    assert error.value.param == "model" and model in str(error.value)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=QUESTION,
                                       tools=[{"type": "function", "function": {"name": "f"}}])
    assert error.value.param == "tools"
