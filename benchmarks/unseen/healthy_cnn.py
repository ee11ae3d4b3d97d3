import os

import torch
import torch.nn as nn


class ConvNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(128, classes)

    def forward(self, x):
        return self.classifier(self.features(x))


class Trainer:
    def __init__(self, model, images, labels, batch_size=32):
        self.model = model
        self.images = images
        self.labels = labels
        self.batch_size = batch_size
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
        self.criterion = nn.CrossEntropyLoss()

    def epoch(self):
        order = torch.randperm(len(self.images))
        for idx in order.split(self.batch_size):
            yield self.images[idx], self.labels[idx]

    def fit(self, steps):
        step = 0
        while step < steps:
            for x, y in self.epoch():
                loss = self.criterion(self.model(x), y)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                step += 1
                if step % 40 == 0:
                    print(f"step {step} loss {loss.item():.3f}")
                if step == steps:
                    return


if __name__ == "__main__":
    torch.manual_seed(0)
    images = torch.randn(1024, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    labels = images.mean((2, 3)).argmax(1)
    net = ConvNet().to(memory_format=torch.channels_last)
    Trainer(net, images, labels).fit(int(os.environ.get("STEPS", 80)))
