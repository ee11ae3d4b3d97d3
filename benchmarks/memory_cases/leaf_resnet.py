# planted: empty_cache at every step (GPU only (time: cudaMalloc/cudaFree and a synchronisation each step); on the
#     CPU a no-op, a tool should say nothing there)
# line: 83
# dominates at the peak: allocated peak: activations (right as it is)
# held by: nothing is held
# mend: remove the call
# measured: memory does not change; reserved between steps is lower with the call, the peak is the same
# on a GPU: cudaMalloc in steady steps (expected, not run)
# Leaf disease classification: small pre-activation ResNet on generated leaf images
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
gpu = device.type == "cuda"
image_size = 128 if gpu else 32
width = 64 if gpu else 16
batch_size = 64 if gpu else 16
n_train = 4000 if gpu else 800
n_classes = 10
steps = int(os.environ.get("STEPS", 600 if gpu else 900))

torch.manual_seed(0)

# ---------------------------------------------------------------- data
line = torch.linspace(-1, 1, image_size)
yy, xx = torch.meshgrid(line, line, indexing="ij")
labels = torch.randint(0, n_classes, (n_train,))
images = torch.empty(n_train, 3, image_size, image_size, dtype=torch.uint8)
for i in range(n_train):
    k = int(labels[i])
    leaf = ((xx / 0.6) ** 2 + (yy / 0.9) ** 2 < 1).float()
    spots = (torch.sin((3 + k) * xx + k) * torch.cos((2 + k % 4) * yy) > 0.55).float() * leaf
    rgb = torch.stack([0.2 * leaf + 0.6 * spots, 0.7 * leaf - 0.3 * spots, 0.1 * leaf])
    images[i] = ((rgb + 0.1 * torch.randn(3, image_size, image_size)).clamp(0, 1) * 255).byte()


# ---------------------------------------------------------------- model
class PreActBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, x):
        h = F.relu(self.bn1(x))
        return self.conv2(F.relu(self.bn2(self.conv1(h)))) + self.skip(h)


model = nn.Sequential(
    nn.Conv2d(3, width, 3, padding=1, bias=False),
    PreActBlock(width, width, 1),
    PreActBlock(width, 2 * width, 2),
    PreActBlock(2 * width, 4 * width, 2),
    nn.BatchNorm2d(4 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(4 * width, n_classes),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

# ---------------------------------------------------------------- training
correct = seen = 0
tic = time.perf_counter()
for step in range(1, steps + 1):
    pick = torch.randint(0, n_train, (batch_size,))
    x = images[pick].to(device).float() / 255
    y = labels[pick].to(device)
    if torch.rand(1).item() < 0.5:
        x = x.flip(-1)
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    correct += (logits.argmax(1) == y).sum().item()
    seen += batch_size
    torch.cuda.empty_cache()
    if step % 50 == 0:
        print(f"{step}/{steps} loss {loss.item():.3f} acc {correct / seen:.3f} "
              f"{(time.perf_counter() - tic) / step * 1e3:.0f} ms/step", flush=True)
        correct = seen = 0
