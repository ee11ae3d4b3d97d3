"""dlrm.py tuned by hand: the same model, data, order and flags, the same loss up to rounding.

    python dlrm_hand.py

What was changed: the tables are one table with an offset for each feature, looked up at once; the pairs of
the interaction are chosen by indices that are made once; model, loss and score are compiled as one function,
and the whole step, fused Adam included, is one CUDA graph; a batch is gathered by one indexing instead of
512, in loader workers with pinned memory; TF32; no .item() but where a loss is printed. No autocast: at this
size casts to bf16 are more kernels, not less work.
"""

import time

import torch
import torch.nn.functional as F
from capture import Captured
from dlrm import DLRM, FEATURES, ClickDataset, parse_args
from prefetch import loader_options
from torch import nn
from torch.utils.data import DataLoader


class BatchClickDataset(ClickDataset):
    """Gathers a whole batch at once; DataLoader calls __getitems__ where there is one."""

    def __getitems__(self, indices):
        rows = torch.tensor(indices)
        return self.dense[rows], self.categories[rows], self.labels[rows]


class OneTableDLRM(nn.Module):
    """Takes over the weights of a plain model."""

    def __init__(self, plain: DLRM):
        super().__init__()
        self.table = nn.Parameter(torch.cat([table.weight.detach() for table in plain.tables]))
        sizes = torch.tensor([0] + [len(table.weight) for table in plain.tables])
        self.register_buffer("offsets", sizes.cumsum(0)[:-1].view(1, FEATURES, 1))
        rows, columns = torch.tril_indices(FEATURES + 1, FEATURES + 1, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)
        self.bottom, self.top = plain.bottom, plain.top

    def forward(self, dense, categories):
        x = self.bottom(dense)
        # F.embedding and a sum rather than embedding_bag: the compiler fuses these two, and their backward.
        embedded = F.embedding(categories + self.offsets, self.table).sum(dim=2)
        stacked = torch.cat([x.unsqueeze(1), embedded], dim=1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat([x, pairs], dim=1)).squeeze(1)


def main():
    args = parse_args(log_every=50)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    dataset = BatchClickDataset(args.sizes, args.length)
    options = {"collate_fn": tuple, **loader_options(device, workers=4)}
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, **options)
    model = OneTableDLRM(DLRM(args.sizes, args.dim)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True, capturable=cuda)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    def loss_of(dense, categories, labels):
        logits = model(dense, categories)
        right = ((logits.detach() > 0) == (labels > 0.5)).float().mean()
        return F.binary_cross_entropy_with_logits(logits, labels), right

    if cuda:
        loss_of = torch.compile(loss_of, dynamic=False)
    first = dataset.__getitems__(list(range(args.batch_size)))
    batch = [torch.zeros_like(part, device=device) for part in first]
    last, total, hits = torch.zeros(3, device=device).unbind()

    def body():
        optimizer.zero_grad(set_to_none=True)
        loss, right = loss_of(*batch)
        loss.backward()
        optimizer.step()
        last.copy_(loss.detach())
        total.add_(last)
        hits.add_(right)

    train = Captured(body, device)
    step, start = 0, time.perf_counter()
    while step < args.steps:
        for parts in loader:
            for static, part in zip(batch, parts):
                static.copy_(part, non_blocking=True)
            train()
            step += 1
            if step % args.log_every == 0:
                now, mean, share = last.item(), total.item() / step, hits.item() / step
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} loss {now:.4f} mean {mean:.4f} accuracy {share:.4f} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
