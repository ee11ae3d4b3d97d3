"""A language model whose forward returns logits and their loss, as nanoGPT's. Now and then the logits are read, after
the update. Prints losses, what was read, and bytes that autograd kept."""

import torch
from torch import nn

CLASSES = 8192


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(CLASSES, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, CLASSES, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens, targets):
        logits = self.head(torch.tanh(self.mix(self.words(tokens))))
        return logits, nn.functional.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1
        )


def keep(tensor):
    global kept
    kept += tensor.nbytes if tensor.data_ptr() not in weights else 0
    return tensor


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
weights = {parameter.data_ptr() for parameter in model.parameters()}
kept = 0
for step in range(12):
    rows = torch.randint(CLASSES, (4, 9))
    kept = 0
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits, loss = model(rows[:, :-1], rows[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
    if step % 3 == 2:
        print("read", logits.argmax(-1).flatten().tolist(), f"{logits.std():.4f}")
print("weights", f"{sum(p.double().abs().sum() for p in model.parameters()):.1f}")
print("kept", kept)
