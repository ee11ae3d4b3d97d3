"""torch's encoder with a mask that the model makes in its first forward, or (--new) in each. --own: layers of a class of
the script's, which go by `is_causal` alone."""

import sys

import torch
from common import Data, end, said
from torch import nn
from torch.utils.data import DataLoader


class Own(nn.TransformerEncoderLayer):
    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(1)) if is_causal else None
        return super().forward(src, mask, src_key_padding_mask, is_causal)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = (Own if "--own" in sys.argv else nn.TransformerEncoderLayer)(8, 2, 16, dropout=0.1, batch_first=True)
        self.inside, self.top = nn.Linear(1, 8), nn.Linear(8, 1)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.mask = None

    def forward(self, x):
        if self.mask is None or "--new" in sys.argv:
            self.mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.top(self.encoder(self.inside(x.unsqueeze(-1)), mask=self.mask)).mean(1)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(2):
    for x, y in DataLoader(Data(), batch_size=6):
        optimizer.zero_grad()
        said(nn.functional.mse_loss(model(x), y)).backward()
        optimizer.step()
end(model)
