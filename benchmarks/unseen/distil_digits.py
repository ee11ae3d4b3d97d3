import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SETTINGS = {"batch": 128, "epochs": 14, "temperature": 3.0, "alpha": 0.7, "lr": 1e-3, "noise": 0.15}


def mlp(widths):
    layers = []
    for a, b in zip(widths[:-2], widths[1:-1]):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def load_data(seed=0):
    x, y = load_digits(return_X_y=True)
    xt, xv, yt, yv = train_test_split(x / 16.0, y, test_size=0.2, random_state=seed, stratify=y)
    as_t = lambda a: torch.tensor(a, dtype=torch.float32)
    return as_t(xt), torch.tensor(yt), as_t(xv), torch.tensor(yv)


def augment(x, noise):
    images = x.view(-1, 8, 8)
    dx, dy = torch.randint(-1, 2, (2,)).tolist()
    shifted = torch.roll(images, shifts=(dy, dx), dims=(1, 2))
    return (shifted + noise * torch.randn_like(shifted)).flatten(1)


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(dim=1) == y).float().mean().item()


def pretrain(teacher, x, y, steps=10):
    opt = torch.optim.AdamW(teacher.parameters(), lr=1e-3)
    teacher.train()
    for _ in range(steps):
        idx = torch.randint(len(x), (128,))
        loss = F.cross_entropy(teacher(augment(x[idx], 0.1)), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return teacher.eval().requires_grad_(False)


def distil(teacher, student, data, s):
    x, y, xv, yv = data
    opt = torch.optim.AdamW(student.parameters(), lr=s["lr"])
    steps = s["epochs"] * -(-len(x) // s["batch"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, s["lr"], total_steps=steps)
    step, t = 0, s["temperature"]
    for epoch in range(s["epochs"]):
        student.train()
        for idx in torch.randperm(len(x)).split(s["batch"]):
            batch = augment(x[idx], s["noise"])
            with torch.inference_mode():
                soft = F.log_softmax(teacher(batch) / t, dim=1)
            logits = student(batch)
            kd = F.kl_div(F.log_softmax(logits / t, dim=1), soft, reduction="batchmean", log_target=True) * t * t
            loss = s["alpha"] * kd + (1 - s["alpha"]) * F.cross_entropy(logits, y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            schedule.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step}/{steps} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.2e}")
        print(f"epoch {epoch} student acc {accuracy(student, xv, yv):.4f}")


if __name__ == "__main__":
    torch.manual_seed(4)
    data = load_data()
    teacher = pretrain(mlp([64, 1024, 1024, 1024, 10]), data[0], data[1])
    print(f"teacher acc {accuracy(teacher, data[2], data[3]):.4f}")
    distil(teacher, mlp([64, 768, 768, 768, 10]), data, SETTINGS)
