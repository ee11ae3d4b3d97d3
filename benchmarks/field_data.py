"""Data of the forms that the scripts of `field_scripts.py` read, made on the spot: nothing can be downloaded.

Each function runs once, in the folder of its script's repository (a copy), and writes there. Text is Python's own
standard library; images are smooth noise, few and linked many times.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

RANDOM = np.random.default_rng(0)


def text(characters: int) -> str:
    """Sources of the standard library, over and over."""
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    found = "".join(each.read_text(encoding="utf-8", errors="ignore") for each in sources)
    return (found * (characters // len(found) + 1))[:characters]


def lines(count: int) -> list[str]:
    """Lines with at least two words."""
    found = [" ".join(line.split()) for line in text(100 * count).splitlines()]
    return [line for line in found if " " in line][:count]


def put(path: str, content: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
    return file


def jsonl(path: str, rows: list[dict[str, object]]) -> None:
    put(path, "".join(json.dumps(row) + "\n" for row in rows))


def picture(path: Path, width: int, height: int, mode: str = "RGB") -> None:
    from PIL import Image

    small = RANDOM.integers(0, 256, (16, 16, len(mode)), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(path)


def link(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to.resolve())


def images(folder: str, count: int, classes: int = 10, size: tuple[int, int] = (500, 375)) -> None:
    """An image folder of `count` JPEGs, of which 64 differ; in one folder where `classes` is 0."""
    for number in range(count):
        inner = f"class{number % classes:03}/" if classes else ""
        path = Path(folder) / f"{inner}{number:06}.jpg"
        if number < 64:
            picture(path, *size)
        else:
            link(path, Path(folder) / f"{f'class{number % 64 % classes:03}/' if classes else ''}{number % 64:06}.jpg")


def image_sets() -> None:
    images("data/train", 20000)
    images("data/val", 100)


def flat_images() -> None:
    images("images", 4000, classes=0, size=(160, 160))


def voc() -> None:
    """Pascal VOC 2012, segmentation."""
    from PIL import Image

    root = Path("data/VOCdevkit/VOC2012")
    images(str(root / "JPEGImages"), 2000, classes=0)
    for number in range(2000):
        mask = root / f"SegmentationClass/{number:06}.png"
        if number < 64:
            mask.parent.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(RANDOM.integers(0, 21, (8, 8), dtype=np.uint8))
            small.resize((500, 375), Image.Resampling.NEAREST).save(mask)
        else:
            link(mask, root / f"SegmentationClass/{number % 64:06}.png")
    names = [f"{number:06}\n" for number in range(2000)]
    put(str(root / "ImageSets/Segmentation/train.txt"), "".join(names))
    put(str(root / "ImageSets/Segmentation/val.txt"), "".join(names[:16]))


def carvana() -> None:
    """Carvana's cars and masks, in their size, and a stub in wandb's place; 16 of 1200 differ."""
    from PIL import Image

    put("stubs/wandb.py", ANYTHING)
    for number in range(1200):
        car, mask = Path(f"data/imgs/{number:06}.jpg"), Path(f"data/masks/{number:06}_mask.gif")
        if number < 16:
            picture(car, 1918, 1280)
            mask.parent.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(RANDOM.integers(0, 2, (8, 8), dtype=np.uint8))
            small.resize((1918, 1280), Image.Resampling.NEAREST).save(mask)
        else:
            link(car, car.with_name(f"{number % 16:06}.jpg"))
            link(mask, mask.with_name(f"{number % 16:06}_mask.gif"))


def coco(root: str = "data/coco") -> None:
    """COCO 2017, boxes with polygons."""
    for split, count in (("train", 4000), ("val", 16)):
        images(f"{root}/{split}2017", count, classes=0, size=(640, 480))
        boxes = []
        for number in range(5 * count):
            x, y = (int(each) for each in RANDOM.integers(0, 300, 2))
            w, h = (int(each) for each in RANDOM.integers(40, 170, 2))
            box: dict[str, object] = {"id": number + 1, "image_id": number // 5, "category_id": number % 80 + 1}
            box |= {"bbox": [x, y, w, h], "area": w * h, "iscrowd": 0}
            boxes.append(box | {"segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]]})
        shapes = [{"id": n, "file_name": f"{n:06}.jpg", "width": 640, "height": 480} for n in range(count)]
        kinds = [{"id": number + 1, "name": f"kind{number}"} for number in range(80)]
        document = {"images": shapes, "annotations": boxes, "categories": kinds}
        put(f"{root}/annotations/instances_{split}2017.json", json.dumps(document))


def yolox_coco() -> None:
    coco("datasets/COCO")


def yolo() -> None:
    """Ultralytics' form of a detection set, and the console script that its wheel would install."""
    put("yolo.py", "from ultralytics.cfg import entrypoint\nif __name__ == '__main__':\n    entrypoint()\n")
    for split, count in (("train", 4000), ("val", 16)):
        images(f"set/images/{split}", count, classes=0, size=(640, 480))
        for number in range(count):
            rows = [f"{RANDOM.integers(80)} {' '.join(map(str, RANDOM.uniform(0.2, 0.4, 4)))}\n" for _ in range(5)]
            put(f"set/labels/{split}/{number:06}.txt", "".join(rows))
    names = "".join(f"  {number}: kind{number}\n" for number in range(80))
    put("set.yaml", f"path: {Path('set').resolve()}\ntrain: images/train\nval: images/val\nnames:\n{names}")


def readme_script() -> None:
    """The README's script of the `Trainer`, with our images and without FID, which needs a download."""
    flat_images()
    readme = Path("README.md").read_text(encoding="utf-8")
    script = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "trainer.train()" in block)
    script = script.replace("path/to/your/images", "images").replace("calculate_fid = True", "calculate_fid = False")
    put("train.py", "if __name__ == '__main__':\n    " + script.replace("\n", "\n    "))


def characters() -> None:
    """nanoGPT's tokens: bytes as uint16."""
    for split, size in (("train", 10_000_000), ("val", 500_000)):
        tokens = np.frombuffer(text(size).encode()[:size], np.uint8).astype(np.uint16)
        tokens.tofile(put(f"data/py/{split}.bin", ""))


def play() -> None:
    """minGPT's text to learn: one file."""
    put("projects/chargpt/input.txt", text(1_000_000))


def llmc() -> None:
    """A shard of llm.c, and in tiktoken's place a stub: its vocabulary is a download and only named here."""
    tokens = np.frombuffer(text(10_000_000).encode()[:10_000_000], np.uint8).astype(np.uint16)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    put("tokens.bin", "").write_bytes(header.tobytes() + tokens.tobytes())
    put("stubs/tiktoken.py", "def get_encoding(name):\n    return None\n")


FOUR_BYTES = """\
class get_encoding:
    def __init__(self, name): pass
    def encode(self, text, **_): return [int.from_bytes(b, "big") % 50257 for b in zip(*[iter(text.encode())] * 4)]
    def decode(self, ids): return str(ids)
"""


def book() -> None:
    """A text as long as the novel that the script downloads, and in tiktoken's place one token for each four bytes."""
    put("middlemarch.txt", text(1_800_000))
    put("stubs/tiktoken.py", FOUR_BYTES)


ANYTHING = """\
class Anything:
    def __call__(self, *args, **kwargs): return self
    def __getattr__(self, name): return self
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return Anything()
"""
"""A module in the place of one that only reports: whatever is called, nothing happens."""


def fineweb() -> None:
    """Shards of tokens (bytes as uint16), a few rows of HellaSwag, and a stub in tiktoken's place."""
    for name, size in (("train_000001", 50_000_000), ("val_000000", 2_000_000)):
        tokens = np.frombuffer(text(size).encode()[:size], np.uint8).astype(np.uint16)
        np.save(put(f"edu_fineweb10B/edufineweb_{name}.npy", ""), tokens)
    some = lines(40)
    rows = [{"ctx": some[n], "label": n % 4, "endings": some[n + 1 : n + 5]} for n in range(0, 40, 5)]
    jsonl("hellaswag/hellaswag_val.jsonl", rows)
    put("stubs/tiktoken.py", FOUR_BYTES)


def enwik() -> None:
    put("data/enwik8.gz", "").write_bytes(gzip.compress(text(96_000_000).encode()[:96_000_000], 1))


def tokenizer(folder: str, special: tuple[str, ...] = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")) -> None:
    """A byte-level BPE of 8192 tokens."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    model = ByteLevelBPETokenizer()
    model.train_from_iterator(lines(20000), vocab_size=8192, special_tokens=list(special), show_progress=False)
    names = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token", "mask_token"), special, strict=True))
    names |= {"cls_token": "<s>", "sep_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=model._tokenizer, model_max_length=1024, **names).save_pretrained(folder)


def llama() -> None:
    """A random Llama of 100M parameters, instructions, and plain text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer("llama")
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
    config = LlamaConfig(vocab_size=8192, **sizes, bos_token_id=0, eos_token_id=1, pad_token_id=2)
    LlamaForCausalLM(config).save_pretrained("llama")
    found = lines(36_000)
    some = ["\n".join(found[place : place + 9]) for place in range(0, len(found), 9)]
    jsonl("instructions/train.jsonl", [{"instruction": each[:40], "output": each} for each in some])
    jsonl("texts/train.jsonl", [{"text": each * 4} for each in some])


def words() -> None:
    """A text of words, as wikitext-2 is laid out."""
    for name, count in (("train", 60_000), ("valid", 2_000), ("test", 2_000)):
        put(f"word_language_model/data/wikitext-2/{name}.txt", "\n".join(lines(count)))


def skipgrams() -> None:
    """Words around each word, as the repository's own tool makes them."""
    put("data/corpus.txt", "\n".join(lines(60_000)))
    subprocess.run([sys.executable, "preprocess.py"], check=True)


def plain_text() -> None:
    tokenizer("tokens")
    put("train.txt", text(12_000_000))
    put("val.txt", text(100_000))


def minimind() -> None:
    some = lines(200_000)
    jsonl("dataset/pretrain_t2t_mini.jsonl", [{"text": "\n".join(some[n : n + 20])} for n in range(0, 200_000, 5)])


def stsb() -> None:
    """Pairs of sentences with a score, and small random encoders of the names that the scripts load."""
    from transformers import DistilBertConfig, DistilBertModel, RobertaConfig, RobertaForSequenceClassification

    tokenizer("distilbert-base-uncased")
    tokenizer("distilroberta-base")
    DistilBertModel(DistilBertConfig(vocab_size=8192)).save_pretrained("distilbert-base-uncased")
    roberta = RobertaConfig(vocab_size=8192, num_hidden_layers=6, max_position_embeddings=514, num_labels=1)
    RobertaForSequenceClassification(roberta).save_pretrained("distilroberta-base")
    for split, count in (("train", 60_000), ("validation", 200), ("test", 200)):
        some = lines(count + 1)
        rows = [{"sentence1": some[n], "sentence2": some[n + 1], "score": n % 11 / 10} for n in range(count)]
        jsonl(f"sentence-transformers/stsb/{split}.jsonl", rows)


def bert() -> None:
    """Pairs of lines, the vocabulary as the repository's own tool makes it, and its console script."""
    some = lines(60_000)
    put("corpus.txt", "".join(f"{some[n]}\t{some[n + 1]}\n" for n in range(len(some) - 1)))
    put("bert.py", "from bert_pytorch.__main__ import train\nif __name__ == '__main__':\n    train()\n")
    build = "from bert_pytorch.dataset.vocab import build; build()"
    subprocess.run([sys.executable, "-c", build, "-c", "corpus.txt", "-o", "vocab.pkl", "-s", "20000"], check=True)


def hub() -> None:
    """DINO lists the models of another repository: an empty one in torch.hub's cache."""
    image_sets()
    put("hub/hub/facebookresearch_xcit_main/hubconf.py", "")


def mnist() -> None:
    """Random digits in MNIST's files."""
    for split, count in (("train", 60_000), ("t10k", 10_000)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            head = np.array([2051 if len(shape) == 3 else 2049, *shape], ">i4").tobytes()
            values = RANDOM.integers(0, 256 if len(shape) == 3 else 10, shape, dtype=np.uint8)
            put(f"data/MNIST/raw/{split}-{kind}-ubyte", "").write_bytes(head + values.tobytes())


def digits() -> None:
    """MNIST, a folder for the script's samples, and a stub in wandb's place."""
    mnist()
    put("stubs/wandb.py", ANYTHING)
    Path("contents").mkdir(exist_ok=True)


def graphs() -> None:
    """4110 small graphs in the text files of TUDataset's NCI1."""
    edges, owner, first = [], [], 1
    for graph in range(1, 4111):
        size = int(RANDOM.integers(20, 40))
        ends = RANDOM.integers(first, first + size, (size, 2))
        edges += [f"{a}, {b}\n{b}, {a}\n" for a, b in ends]
        owner += [f"{graph}\n"] * size
        first += size
    rows = {"A": edges, "graph_indicator": owner, "graph_labels": [f"{n % 2}\n" for n in range(4110)]}
    rows["node_labels"] = [f"{label}\n" for label in RANDOM.integers(0, 37, first - 1)]
    for name, found in rows.items():
        put(f"data/TU/NCI1/raw/NCI1_{name}.txt", "".join(found))


def bodies() -> None:
    """Trajectories of five charged bodies: random walks."""
    for split, count in (("train", 3000), ("valid", 300), ("test", 300)):
        walk = RANDOM.normal(size=(count, 49, 3, 5)).cumsum(1) / 10
        charges = RANDOM.choice([-1.0, 1.0], (count, 5, 1))
        pairs = charges @ charges.transpose(0, 2, 1)
        for name, values in {"loc": walk, "vel": np.gradient(walk, axis=1), "edges": pairs, "charges": charges}.items():
            np.save(f"n_body_system/dataset/{name}_{split}_charged5_initvel1small.npy", values)


def proteins() -> None:
    """Chains of the Protein Data Bank as ProteinMPNN reads them, one in each entry; 64 of 1200 differ."""
    import torch

    letters, rows = "ACDEFGHIKLMNPQRSTVWY", ["CHAINID,DEPOSITION,RESOLUTION,HASH,CLUSTER,SEQUENCE\n"]
    meta = {"chains": ["A"], "tm": torch.ones(1, 1, 3), "asmb_ids": ["1"], "asmb_chains": ["A"]}
    meta |= {"asmb_xform0": torch.eye(4)[None]}
    for number in range(1200):
        entry, known = (Path(f"pdb/{name[1:3]}/{name}.pt") for name in (f"{number:04}", f"{number % 64:04}"))
        chain, known_chain = (each.with_name(f"{each.stem}_A.pt") for each in (entry, known))
        if number < 64:
            size = int(RANDOM.integers(100, 500))
            sequence = "".join(letters[each] for each in RANDOM.integers(0, 20, size))
            atoms = 3.8 * torch.randn(size, 1, 3).cumsum(0) + torch.randn(size, 14, 3)
            torch.save(meta, put(str(entry), ""))
            torch.save({"seq": sequence, "xyz": atoms}, put(str(chain), ""))
        else:
            link(entry, known)
            link(chain, known_chain)
        rows.append(f"{entry.stem}_A,2015-01-01,2.0,{number:06},{number},A\n")
    put("list.csv", "".join(rows))
    put("valid_clusters.txt", "".join(f"{number}\n" for number in range(40)))
    put("test_clusters.txt", "40\n")


def interactions() -> None:
    """6000 users with 30 items each."""
    rows = [f"{user} {item}\n" for user in range(1, 6001) for item in RANDOM.integers(1, 3417, 30)]
    put("python/data/ml-synth.txt", "".join(rows))


def criteo() -> None:
    """Rows of Criteo: a label that three of the columns tell, 13 numbers, 26 categories."""
    numbers, kinds = RANDOM.integers(0, 50, (120_000, 13)), RANDOM.integers(0, 1000, (120_000, 26))
    label = (numbers[:, 0] + kinds[:, 0] % 50 + kinds[:, 1] % 50 > 75).astype(int)
    rows = np.column_stack([label, numbers, kinds])
    put("train.txt", "".join("\t".join(map(str, row)) + "\n" for row in rows.tolist()))
    put("chkpt/empty", "")


def views() -> None:
    """A Blender scene of NeRF: 30 pictures and their cameras."""
    for split, count in (("train", 30), ("val", 8), ("test", 8)):
        frames = []
        for number in range(count):
            picture(Path(f"scene/{split}/r_{number}.png"), 400, 400, "RGBA")
            pose = np.eye(4)
            pose[:3, 3] = RANDOM.normal((0, 0, 4))
            frames.append({"file_path": f"./{split}/r_{number}", "transform_matrix": pose.tolist()})
        put(f"scene/transforms_{split}.json", json.dumps({"camera_angle_x": 0.69, "frames": frames}))


def shapes() -> None:
    """ModelNet40's text files: 10,000 points with normals in each; 16 of 2400 differ."""
    root = Path("data/modelnet40_normal_resampled")
    names = [f"kind{number}" for number in range(40)]
    put(str(root / "modelnet40_shape_names.txt"), "".join(f"{name}\n" for name in names))
    for split, each in (("train", 60), ("test", 1)):
        known = [f"{name}_{split}{number:04}" for name in names for number in range(each)]
        put(str(root / f"modelnet40_{split}.txt"), "".join(f"{name}\n" for name in known))
        for place, name in enumerate(known):
            first = root / f"points{place % 16}.txt"
            if not first.exists():
                np.savetxt(first, RANDOM.uniform(-1, 1, (10_000, 6)), fmt="%.6f", delimiter=",")
            link(root / name.split("_")[0] / f"{name}.txt", first)


def voices() -> None:
    """VoxCeleb's lists and waves: 10 utterances each of 2000 speakers, 4 s; 64 waves differ."""
    import wave

    names = [f"id{number // 10:05}/{number % 10:05}.wav" for number in range(20_000)]
    for number, name in enumerate(names):
        path = Path("data/voxceleb2/dev/wav") / name
        if number >= 64:
            link(path, Path("data/voxceleb2/dev/wav") / names[number % 64])
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(RANDOM.integers(-9000, 9000, 64_000).astype("<i2").tobytes())
    link(Path("data/voxceleb1/test/wav"), Path("data/voxceleb2/dev/wav"))
    put("data/train_list.txt", "".join(f"{name[:7]} {name}\n" for name in names))
    put("data/veri_test.txt", "".join(f"{n % 2} {names[n]} {names[n + 1]}\n" for n in range(40)))


def spoofs() -> None:
    """ASVspoof 2019's utterances, 4 s of 64 that differ, named over and over; half of them are genuine."""
    import soundfile

    for number in range(64):
        path = put(f"LA/ASVspoof2019_LA_train/flac/LA_{number:04}.flac", "")
        soundfile.write(path, RANDOM.integers(-9000, 9000, 64_000).astype(np.int16), 16_000)
    for split, ending, count in (("train", "trn", 200_000), ("dev", "trl", 48), ("eval", "trl", 48)):
        kinds = ("A01 spoof", "- bonafide")
        rows = [f"LA_{n % 64:04} LA_{n % 64:04} - {kinds[n % 2]}\n" for n in range(count)]
        put(f"LA/ASVspoof2019_LA_cm_protocols/ASVspoof2019.LA.cm.{split}.{ending}.txt", "".join(rows))
        if split != "train":
            link(Path(f"LA/ASVspoof2019_LA_{split}"), Path("LA/ASVspoof2019_LA_train"))


def weather() -> None:
    """50,000 rows of 21 numbers, 10 minutes apart; empty modules for packages that are imported and not used."""
    dates = np.datetime64("2020-01-01T00:00:00") + np.arange(50_000) * np.timedelta64(10, "m")
    values = RANDOM.normal(size=(50_000, 21)).cumsum(0)
    rows = [f"{date},{','.join(f'{each:.3f}' for each in row)}\n" for date, row in zip(dates, values, strict=True)]
    head = ",".join(["date", *(f"column{number}" for number in range(20)), "OT"])
    put("dataset/weather/weather.csv", head + "\n" + "".join(rows))
    for name in ("sktime/datasets", "datasets", "patoolib", "reformer_pytorch"):
        put(f"stubs/{name}.py", ANYTHING)


def darcy() -> None:
    """Darcy flow on two grids, and in wandb's place an empty module: it is imported and not used."""
    import torch

    put("stubs/wandb.py", "")
    for split, count in (("train", 1000), ("test", 100)):
        for side in (16, 32):
            fields = {"x": torch.rand(count, side, side) > 0.5, "y": torch.rand(count, side, side)}
            torch.save(fields, put(f"darcy/darcy_{split}_{side}.pt", ""))


def flows() -> None:
    """KITTI's optical flow: pairs of pictures, flow in 16 bits; 16 of 800 differ."""
    import cv2

    root = Path("datasets/KITTI/training")
    for number in range(800):
        for kind, frame in (("image_2", 10), ("image_2", 11), ("flow_occ", 10)):
            path = root / kind / f"{number:06}_{frame}.png"
            if number >= 16:
                link(path, root / kind / f"{number % 16:06}_{frame}.png")
            elif kind == "image_2":
                picture(path, 1242, 375)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                small = RANDOM.integers(2**15 - 500, 2**15 + 500, (12, 40, 3)).astype(np.uint16)
                small[..., 0] = 1  # valid; OpenCV writes blue first
                cv2.imwrite(str(path), cv2.resize(small, (1242, 375), interpolation=cv2.INTER_NEAREST))
    (root.parent / "testing").mkdir()
    Path("checkpoints").mkdir(exist_ok=True)


def nothing() -> None:
    """The script makes its own."""
