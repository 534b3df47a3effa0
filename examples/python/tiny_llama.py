"""A Llama decoder in plain PyTorch, with Hugging Face's names: what the examples train and quantize where transformers is not installed."""

import json
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

import narrow

EXAMPLES = pathlib.Path(__file__).resolve().parents[1]
MODEL = EXAMPLES / "docs-llama-13m"
TOKENS = EXAMPLES / "docs_tokens.safetensors"


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        hidden = config["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)

    def forward(self, x, rotation):
        split = lambda y, heads: y.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)
        q, k, v = split(self.q_proj(x), self.heads), split(self.k_proj(x), self.kv_heads), split(self.v_proj(x), self.kv_heads)
        q, k = rotate(q, rotation), rotate(k, rotation)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def rotate(x, rotation):
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(config), Mlp(config)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden, epsilon), nn.RMSNorm(hidden, epsilon)

    def forward(self, x, rotation):
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        theta, head_dim = self.config["rope_parameters"]["rope_theta"], self.config["head_dim"]
        frequencies = theta ** (-torch.arange(0, head_dim, 2, device=x.device).float() / head_dim)
        angles = torch.outer(torch.arange(tokens.shape[1], device=x.device).float(), frequencies).repeat(1, 2)
        rotation = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))

    @staticmethod
    def load(path=MODEL, dtype=torch.float32):
        model = Llama(json.loads((pathlib.Path(path) / "config.json").read_text()))
        checkpoint = narrow.open_checkpoint(path, framework="torch")
        model.load_state_dict({name: checkpoint.read(name) for name in checkpoint.names()})
        return model.to(dtype)


def read_tokens(name, windows=None, length=None):
    """Windows of the held-out text ("eval") or of the text for calibration and training ("calib")."""
    values = torch.tensor(narrow.read_token_windows(TOKENS, name)[:windows])
    return values[:, :length]


@torch.inference_mode()
def perplexity(model, tokens, batch=4):
    """exp of the mean negative log-likelihood; each window is read on its own."""
    total, count = 0.0, 0
    for part in tokens.split(batch):
        logits = model(part)[:, :-1].float()
        total += F.cross_entropy(logits.reshape(-1, logits.shape[-1]), part[:, 1:].reshape(-1), reduction="sum").item()
        count += part[:, 1:].numel()
    return float(torch.tensor(total / count).exp())
