"""The executor beside Hugging Face transformers on torch: logits of every architecture and RoPE, the example model, greedy text, speed."""
import copy
import json
import os
import pathlib
import subprocess
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES / "docs-llama-13m"
TOKENS = EXAMPLES / "docs_tokens.safetensors"

SMALL = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=128,
             max_position_embeddings=128, rms_norm_eps=1e-5)


def rope(kind, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


ARCHITECTURES = {
    "llama": ("Llama", {}),
    "llama_bias_head_dim": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama_linear": ("Llama", rope("linear", factor=4.0)),
    "llama_dynamic": ("Llama", rope("dynamic", factor=2.0)),
    "llama_llama3": ("Llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)),
    "llama_yarn": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama_yarn_mscale": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.7, mscale_all_dim=1.2, beta_fast=16.0)),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {}),
    "qwen2_window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral_window_one_expert": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 24}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 96, "norm_topk_prob": True}),
    "qwen3_moe_some_layers": ("Qwen3Moe", {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                                           "norm_topk_prob": False, "mlp_only_layers": [1]}),
}


@pytest.fixture(scope="module")
def narrow(bin_dir):
    tool = bin_dir / "narrow"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")

    def run(*arguments):
        done = subprocess.run([tool, *map(str, arguments), "--json", "--quiet"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def narrow_logits(narrow, folder, model, tokens, *options):
    save_file({"eval": tokens.to(torch.int32).contiguous()}, folder / "tokens.safetensors")
    narrow("eval", model, "--tokens", folder / "tokens.safetensors", "--logits", folder / "logits.safetensors", "--compute", "fp32", *options)
    return load_file(folder / "logits.safetensors")["logits"].reshape(*tokens.shape, -1)


def relative_error(actual, expected):
    """The largest difference of a prompt's logits, relative to the largest logit of that prompt."""
    flat = lambda x: x.reshape(x.shape[0], -1)
    return ((flat(actual) - flat(expected)).abs().amax(1) / flat(expected).abs().amax(1)).max().item()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(narrow, tmp_path, name):
    family, fields = ARCHITECTURES[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **fields})
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # the default is so small that attention would hardly matter
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.15) + (1.0 if parameter.dim() == 1 else 0.0))
    model.save_pretrained(tmp_path / "model")
    length = 200 if "dynamic" in name else 100
    tokens = torch.randint(0, 128, (3, length))
    with torch.inference_mode():
        expected = torch.cat([model(row[None]).logits for row in tokens])
    assert relative_error(narrow_logits(narrow, tmp_path, tmp_path / "model", tokens), expected) < 1e-4


def test_hundred_prompts_of_the_example(narrow, tmp_path):
    """fp32 arithmetic over the same bf16 weights: 1e-3 relative on 100 prompts."""
    tokens = load_file(TOKENS)["eval"][:100, :128].long()
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = torch.cat([model(part).logits for part in tokens.split(10)])
    error = relative_error(narrow_logits(narrow, tmp_path, MODEL, tokens), expected)
    print(f"largest relative difference over 100 prompts: {error:.2e}")
    assert error < 1e-3


@pytest.mark.parametrize("scheme", ["int8:row", "int4:block128:asym", "nvfp4", "fp6_e3m2:row"])
def test_quantized_weights_mean_their_values(narrow, tmp_path, scheme):
    """A quantized checkpoint run by narrow, and its plain fp32 form run by transformers."""
    narrow("quantize", MODEL, tmp_path / "small", scheme)
    narrow("dequantize", tmp_path / "small", tmp_path / "plain", "--dtype", "fp32")
    tokens = load_file(TOKENS)["eval"][:4, :256].long()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(tokens).logits
    assert relative_error(narrow_logits(narrow, tmp_path, tmp_path / "small", tokens), expected) < 1e-3


def small_experts(folder, family):
    more = {"num_local_experts": 4} if family == "Mixtral" else {"num_experts": 4, "moe_intermediate_size": 96, "head_dim": 16}
    torch.manual_seed(2)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SMALL, num_experts_per_tok=2, **more))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe"])
@pytest.mark.parametrize("scheme", ["int4:block32:asym", "nvfp4", "int8:tensor", "fp8_e4m3:32x32"])
def test_experts_load_quantized(narrow, tmp_path, family, scheme):
    """Files have them one by one, transformers in one tensor: codes are stacked as it stacks values, and mean the same."""
    experts = pytest.importorskip("narrow.torch.experts")
    pytest.importorskip("narrow.torch.huggingface")
    narrow("quantize", small_experts(tmp_path / "model", family), tmp_path / "small", scheme)
    narrow("dequantize", tmp_path / "small", tmp_path / "plain", "--dtype", "fp32")
    load = transformers.AutoModelForCausalLM.from_pretrained
    small, plain = (load(tmp_path / name, dtype=torch.float32).eval() for name in ("small", "plain"))
    tokens, x = torch.randint(0, 128, (3, 40)), torch.randn(5, 64)
    with torch.inference_mode():
        expected = plain(tokens).logits
        assert relative_error(small(tokens).logits, expected) < 1e-4
        mine, theirs = (model.model.layers[1].mlp.experts for model in (small, plain))
        assert isinstance(mine.gate_up_proj, experts.QuantizedExperts) and mine.gate_up_proj.codes.dtype == torch.uint8
        for i in range(4):
            assert torch.equal(mine.gate_up_proj[i].dequantize(), theirs.gate_up_proj[i])
            assert torch.allclose(torch.nn.functional.linear(x, mine.gate_up_proj[i]), x @ theirs.gate_up_proj[i].T, atol=1e-4)
        other = copy.deepcopy(small).to(torch.bfloat16)
        weight = other.model.layers[1].mlp.experts.gate_up_proj  # of one layer: rounding may send a token to another expert further on
        assert weight.scales.dtype == mine.gate_up_proj.scales.dtype and other(tokens).logits.dtype == torch.bfloat16
        y = torch.nn.functional.linear(x.bfloat16(), weight[3])
        assert relative_error(y.float()[None], (x.bfloat16().float() @ theirs.gate_up_proj[3].T)[None]) < 2**-8  # results rounded once
        other = copy.deepcopy(small)
        other.model.layers[0].mlp.experts.down_proj.codes[0] = 0  # what is prepared follows the codes
        assert relative_error(other(tokens).logits, expected) > 1e-4
    with pytest.raises(NotImplementedError, match="copy the directory"):
        small.save_pretrained(tmp_path / "saved")


@pytest.mark.parametrize("family, scheme", [("Mixtral", "nvfp4"), ("Qwen3Moe", "int4:block32:asym"), ("Qwen3Moe", "W8A8")])
def test_experts_in_memory_are_those_of_the_files(narrow, tmp_path, family, scheme):
    huggingface, torch_side = pytest.importorskip("narrow.torch.huggingface"), pytest.importorskip("narrow.torch")
    narrow("quantize", small_experts(tmp_path / "model", family), tmp_path / "small", scheme)
    load = transformers.AutoModelForCausalLM.from_pretrained
    loaded, made = load(tmp_path / "small", dtype=torch.float32).eval(), load(tmp_path / "model", dtype=torch.float32).eval()
    torch_side.quantize_(made, scheme)
    expected, state = loaded.state_dict(), made.state_dict()
    assert state.keys() == expected.keys() and any("experts.down_proj.codes" in name for name in state)
    assert all(torch.equal(state[name], expected[name]) for name in state)
    at_once = load(tmp_path / "model", dtype=torch.float32, quantization_config=huggingface.NarrowConfig(scheme)).state_dict()
    assert at_once.keys() == state.keys() and all(torch.equal(at_once[name], state[name]) for name in state)
    tokens = torch.randint(0, 128, (3, 40))
    with torch.inference_mode():
        assert torch.equal(made(tokens).logits, loaded(tokens).logits)
    empty = load(tmp_path / "model", dtype=torch.float32).to("meta")
    torch_side.quantize_(empty, scheme).load_state_dict(state, assign=True)
    plain = torch_side.dequantize_(made, torch.float32)
    assert plain.model.layers[1].mlp.experts.down_proj.dtype == torch.float32 and plain(tokens).logits.isfinite().all()
    with torch.inference_mode():
        if scheme != "W8A8":
            assert relative_error(plain(tokens).logits, loaded(tokens).logits) < 1e-4


def test_experts_alone_and_experts_left_alone(tmp_path):
    torch_side = pytest.importorskip("narrow.torch")
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(small_experts(tmp_path, "Mixtral"))
    model = torch_side.quantize_(load(), {r".*experts\.down_proj": "int8:row"})
    experts = model.model.layers[0].mlp.experts
    assert type(experts.down_proj).__name__ == "QuantizedExperts" and experts.gate_up_proj.dtype.is_floating_point
    assert type(model.model.layers[0].self_attn.q_proj) is torch.nn.Linear
    with pytest.raises(NotImplementedError, match="rounded dynamically"):
        torch_side.quantize_(load(), torch_side.QuantizeConfig("int8:row", inputs="int8:tensor:static"))
    model = load()
    with pytest.warns(UserWarning, match="model.layers.0.mlp.experts and 2 others hold the weights of all experts in one tensor"):
        torch_side.prepare_qat_(model, "int8:row")


def test_a_head_for_another_task_stays_plain(narrow, tmp_path):
    pytest.importorskip("narrow.torch.huggingface")
    sizes = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    narrow("quantize", tmp_path / "bert", tmp_path / "small", "int8:row")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    assert type(model.classifier) is torch.nn.Linear and type(model.bert.pooler.dense).__name__ == "QuantizedLinear"
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_checkpoints_that_transformers_cannot_place_are_refused(narrow, tmp_path):
    """It would draw random numbers for what it does not find, and go on with a warning."""
    pytest.importorskip("narrow.torch.huggingface")
    config = transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    narrow("quantize", tmp_path / "gpt2", tmp_path / "small-gpt2", "int8:row", "--targets", "re:.*c_attn[.]weight")
    mixed = "re:.*experts.0.w1=int8:row"
    narrow("quantize", small_experts(tmp_path / "mixtral", "Mixtral"), tmp_path / "mixed", "int4:block32", "--rule", mixed)
    narrow("quantize", tmp_path / "mixtral", tmp_path / "some", "int4:block32", "--ignore", "re:.*experts.0.w1")
    for folder, words in (("small-gpt2", "c_attn is quantized.*no nn.Linear"), ("mixed", "to one scheme"), ("some", "7 of its 8 matrices")):
        with pytest.raises(NotImplementedError, match=words):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / folder)


def test_conv1d_layers_are_quantized_in_memory(bin_dir, tmp_path):
    """GPT-2's weights are [inputs, outputs]: as those of Linear layers, calibrated, rounded inputs and trained; not in files."""
    huggingface, torch_side = pytest.importorskip("narrow.torch.huggingface"), pytest.importorskip("narrow.torch")
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=1)
    plain, tokens = transformers.GPT2LMHeadModel(config).eval(), torch.randint(0, 128, (3, 40))
    expected = plain(tokens).logits
    statistics = torch_side.calibrate(plain, [tokens], second_moments=True)
    for how in ("int8:row", torch_side.QuantizeConfig("W8A8-static", statistics=statistics, method="smoothquant+gptq")):
        model = torch_side.quantize_(copy.deepcopy(plain), how)
        assert type(model.transformer.h[1].mlp.c_fc).__name__ == "QuantizedLinear" and type(model.lm_head) is torch.nn.Linear
        assert 0 < relative_error(model(tokens).logits, expected) < 0.05
        errors = torch_side.layer_errors(plain, model, [tokens])
        assert len(errors) == 8 and "c_" in str(errors[0])
    copied = copy.deepcopy(plain)
    copied.transformer.h[0].attn.c_proj.weight.data += 1  # square: the wrong way round it would run as well
    model = torch_side.quantize_(copy.deepcopy(copied), "int8:row")
    assert relative_error(model(tokens).logits, copied(tokens).logits) < 0.05
    trained = torch_side.prepare_qat_(copy.deepcopy(plain), "int8:row").train()
    trained(tokens, labels=tokens).loss.backward()
    assert trained.transformer.h[0].mlp.c_fc.weight.grad.shape == (256, 64)
    with pytest.raises(NotImplementedError, match="state_dict"):
        huggingface.save_pretrained(model, tmp_path / "saved")
    plain.save_pretrained(tmp_path / "gpt2")
    load = transformers.AutoModelForCausalLM.from_pretrained
    at_once = load(tmp_path / "gpt2", quantization_config=huggingface.NarrowConfig("int8:row")).state_dict()
    later = torch_side.quantize_(copy.deepcopy(plain), "int8:row").state_dict()
    assert at_once.keys() == later.keys() and all(torch.equal(at_once[name], later[name]) for name in later)
    done = subprocess.run([bin_dir / "narrow", "quantize", tmp_path / "gpt2", tmp_path / "small", "int8:row"], capture_output=True, text=True)
    assert done.returncode == 2 and "8 x 'Conv1D, [inputs, outputs]" in done.stderr and not (tmp_path / "small").exists()


def test_greedy_text_is_the_same(narrow):
    """Forty tokens one by one through the cache."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    for prompt in ["To install the package, run", "The function returns a", "Copyright"]:
        made = narrow("generate", MODEL, "-p", prompt, "-n", 40, "--compute", "fp32")
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert made["prompt_tokens"] == ids[0].tolist()
        expected = model.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=1)[0, ids.shape[1]:].tolist()
        assert made["tokens"] == [token for token in expected if token != 1]


def test_speed_beside_transformers(narrow):
    """Evaluation in bf16 and int8 beside transformers in its better type: the same windows and threads, rounds in turn, the best of each."""
    threads, windows, rounds = min(2, os.cpu_count()), 16, 3
    tokens = load_file(TOKENS)["eval"][:windows].long()
    models = {dtype: transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).eval() for dtype in (torch.bfloat16, torch.float32)}
    options = {"bf16": [], "int8": ["--scheme", "W8A8"]}
    rates = {}

    def theirs(model, batch):
        start = time.perf_counter()
        with torch.inference_mode():
            for part in tokens.split(batch):
                logits = model(part).logits[:, :-1].float()
                torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), part[:, 1:].reshape(-1))
        return tokens.numel() / (time.perf_counter() - start)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for _ in range(rounds):
        for dtype, model in models.items():
            for batch in (1, 4):
                key = f"transformers {dtype}"
                rates[key] = max(rates.get(key, 0.0), theirs(model, batch))
        for name, more in options.items():
            run = narrow("eval", MODEL, "--tokens", TOKENS, "--windows", windows, "--threads", threads, *more)
            rates[f"narrow {name}"] = max(rates.get(f"narrow {name}", 0.0), run["tokens_per_second"])
    torch.set_num_threads(before)
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} tokens/s")
    assert rates["narrow bf16"] >= max(rate for name, rate in rates.items() if name.startswith("transformers"))
    assert rates["narrow int8"] > rates["narrow bf16"]
