import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Teacher(nn.Module):
    def __init__(self, classes=10, w=32):
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, w), conv_bn(w, w), conv_bn(w, 2 * w, 2), conv_bn(2 * w, 2 * w))
        self.fc = nn.Linear(2 * w, classes)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


class Student(nn.Module):
    def __init__(self, classes=10, w=12):
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, w, 2), conv_bn(w, 2 * w, 2))
        self.fc = nn.Linear(2 * w, classes)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


class KDLoss(nn.Module):
    def __init__(self, temperature=4.0, alpha=0.7):
        super().__init__()
        self.t, self.alpha = temperature, alpha

    def forward(self, student_logits, teacher_logits, labels):
        soft = (
            F.kl_div(
                F.log_softmax(student_logits / self.t, 1), F.softmax(teacher_logits / self.t, 1), reduction="batchmean"
            )
            * self.t**2
        )
        return self.alpha * soft + (1 - self.alpha) * F.cross_entropy(student_logits, labels)


class Distiller:
    def __init__(self):
        self.teacher, self.student = Teacher().eval(), Student()
        self.criterion = KDLoss()
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.05, momentum=0.9)

    def step(self, images, labels):
        teacher_logits = self.teacher(images)
        student_logits = self.student(images)
        loss = self.criterion(student_logits, teacher_logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    torch.manual_seed(0)
    images = torch.randn(640, 3, 32, 32)
    labels = torch.randint(0, 10, (640,))
    distiller = Distiller()
    for epoch in range(2):
        for i, idx in enumerate(torch.randperm(640).split(16)):
            loss = distiller.step(images[idx], labels[idx])
            if i % 20 == 0:
                print(f"epoch {epoch} iter {i} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
