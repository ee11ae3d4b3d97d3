"""A small model learns from a larger one that no optimizer updates, and whose forward is not under no_grad."""

import torch
from common import batches, end, net, said
from torch import nn


class Teacher(nn.Sequential):
    pass


class Student(nn.Sequential):
    pass


student = Student(*net())
teacher = Teacher(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)).eval()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for x, _ in batches():
    said(loss := (student(x) - teacher(x).detach()).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(student, teacher)
