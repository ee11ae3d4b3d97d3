"""Tensors whose numbers do not all lie in a storage of their own: as inputs, batches, and arguments of operations."""

import sys
import warnings

import torch
from common import said
from torch import nn
from torch.func import functionalize, grad, vmap
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
torch.manual_seed(0)
A = torch.eye(4) * 2


class Labelled(torch.Tensor):
    """A subclass."""


def nested():
    return torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])


KINDS = {
    "coo": A.to_sparse,
    "csr": A.to_sparse_csr,
    "mkldnn": A.to_mkldnn,
    "quantized": lambda: torch.quantize_per_tensor(A, 0.1, 0, torch.quint8),
    "meta": lambda: A.to("meta"),
    "nested": nested,
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged),
    "subclass": lambda: A.as_subclass(Labelled),
}
kinds = sys.argv[1:]


class Samples(Dataset):
    def __init__(self):
        self.held = [KINDS[kind]() for kind in kinds]

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return *(KINDS[kind]() for kind in kinds), torch.ones(4, 4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, odd, x):
        for one in odd:
            if one.layout in {torch.sparse_coo, torch.sparse_csr}:
                x = x + one @ torch.mm(one, torch.mm(x, x)) / 8  # a sparse product with one that there is
            elif one.is_meta:
                torch.mm(one, one)
                nn.functional.cross_entropy(one.mul(one[:, :1]), torch.zeros(4, dtype=torch.int64, device="meta"))
            elif one.is_nested and one.layout is torch.strided:
                torch.bmm(one, one.transpose(1, 2))
                heads = one.reshape(2, -1, 2, 2).transpose(1, 2).contiguous()
                nn.functional.scaled_dot_product_attention(heads, heads, heads)
                x = x + self.layer(one).to_padded_tensor(0.0).mean()
            elif one.is_nested:
                x = x + self.layer(one).values().mean()
            elif one.is_quantized:
                x = x + one.dequantize()
            elif one.is_mkldnn:
                x = x + torch.relu(one).to_dense()
            else:
                x = x + (one @ x).as_subclass(torch.Tensor)
        return self.layer(x) + vmap(self.layer)(x) + functionalize(self.layer)(x)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(12):
    for *odd, x in DataLoader(Samples(), batch_size=None):
        optimizer.zero_grad()
        x = x + grad(lambda one: model.layer(one).square().sum())(x) / 100
        said(model(odd, x).square().mean()).backward()
        optimizer.step()
