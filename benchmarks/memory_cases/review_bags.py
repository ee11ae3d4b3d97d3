# planted: workers' copy-on-write: a Dataset with a list of 900,000 dicts, read in 2 forked workers (leak on the
#     host, in the workers; levels off when every page is copied)
# line: 43 (with 49)
# dominates at the peak: host memory of the worker processes (reference counts dirty the shared pages); no tensors
# held by: Reviews.records (list of dict) in each worker
# mend: keep the records as arrays (numpy bytes, int8) or packed tensors
# measured: CPU: USS of each worker 7 -> 425 MB over the run; mended 18 MB (psutil, 0.5 s samples)
# on a GPU: same on the host: 3,000,000 records, about 1.4 GB a worker (not run)
"""Star rating from short product reviews: bag of hashed words, loader workers do the tokenising."""
import os
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REVIEWS = int(os.environ.get("REVIEWS", 3_000_000 if device.type == "cuda" else 900_000))
PER_EPOCH = 1_000_000 if device.type == "cuda" else 200_000
EPOCHS = 3 if device.type == "cuda" else 5
BATCH = 1024
WORKERS = 2
BUCKETS = 20_000
GOOD = "great lovely solid perfect fast sturdy bright quiet".split()
BAD = "broken cheap noisy late useless faded wobbly leaking".split()
PLAIN = [f"word{i}" for i in range(3000)]


def write_reviews(n, seed=0):
    rng = random.Random(seed)
    reviews = []
    for i in range(n):
        stars = rng.randint(1, 5)
        words = rng.choices(PLAIN, k=6)
        words += rng.choices(GOOD if rng.random() < (stars - 1) / 4 else BAD, k=2)
        reviews.append({"id": f"R{i:09d}", "text": " ".join(words), "stars": stars, "helpful": rng.random()})
    return reviews


class Reviews(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        record = self.records[i]
        ids = [hash_word(w) for w in record["text"].split()]
        return ids, record["stars"] - 1


def hash_word(word):
    value = 5381
    for c in word:
        value = (value * 33 + ord(c)) & 0xFFFFFF
    return value % BUCKETS


def collate(items):
    lengths = torch.tensor([len(ids) for ids, _ in items])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    flat = torch.tensor([i for ids, _ in items for i in ids])
    return flat, offsets, torch.tensor([s for _, s in items])


class BagNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, dim, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 5))

    def forward(self, flat, offsets):
        return self.mlp(self.bag(flat, offsets))


def main():
    torch.manual_seed(0)
    t0 = time.perf_counter()
    dataset = Reviews(write_reviews(REVIEWS))
    print(f"{len(dataset)} reviews in {time.perf_counter() - t0:.1f} s", flush=True)
    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=collate, num_workers=WORKERS,
                        sampler=RandomSampler(dataset, num_samples=PER_EPOCH),
                        persistent_workers=True, multiprocessing_context="fork")
    model = BagNet().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        total, count, t0 = 0.0, 0, time.perf_counter()
        for flat, offsets, stars in loader:
            loss = criterion(model(flat.to(device), offsets.to(device)), stars.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += 1
            if count % 50 == 0:
                print(f"epoch {epoch} batch {count} loss {total / count:.4f}", flush=True)
        print(f"epoch {epoch}: {count / (time.perf_counter() - t0):.1f} batches/s")


if __name__ == "__main__":
    main()
