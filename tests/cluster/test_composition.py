# SPDX-License-Identifier: Apache-2.0
"""What is put on top of drafts and verification leaves them as they are: several seeded choices, stop strings in the middle of an
accepted run, log-probabilities, prompt lookup, all at once, against plain decoding."""
from harness import post


def choices(cluster, prompt, drafts, **more):
    body = {"prompt": prompt, "max_tokens": 16, "n": 2, "seed": 11, "temperature": 0.8, "top_p": 0.95, "logprobs": 2,
            "cache_salt": f"composition {drafts}", "assay": drafts, **more}
    status, reply = post(f"{cluster.url()}/v1/completions", body)
    assert status == 200, reply
    return [(choice["text"], choice["finish_reason"], choice["logprobs"]) for choice in reply["choices"]], reply["usage"]


def test_sampled_choices_with_a_stop_and_logprobs_are_those_of_plain_decoding(cluster, prompt):
    plain, text = {"compressor": "none", "horizon": 0}, prompt[:700]
    whole, _ = choices(cluster, text, plain)
    assert whole[0][0] != whole[1][0]
    # In the middle of the first answer, and of two letters, which a token need not end with.
    middle = len(whole[0][0]) // 2
    stop = whole[0][0][middle:middle + 2]
    expected, told = choices(cluster, text, plain, stop=stop)
    assert "stop" in [reason for _, reason, _ in expected]
    for compressor in "kivi2", "snapkv":
        answer, usage = choices(cluster, text, {"compressor": compressor, "horizon": 16, "prompt_lookup": 8}, stop=stop)
        assert answer == expected, compressor
        assert usage["completion_tokens"] == told["completion_tokens"]
        assert usage["assay"]["drafted_tokens"] > 0
