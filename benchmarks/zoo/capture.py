"""Replay a step as one CUDA graph; shared by the hand-tuned scripts that would wait for kernel launches."""

import torch


class Captured:
    """Calls `body` a few times as it is, then captures it and only replays.

    What `body` reads and writes has to keep its address: inputs are copied into tensors made before, results are
    copied into such tensors too. On the CPU it is just called.
    """

    def __init__(self, body, device, warmup=5):
        self.body = body
        self.left = warmup
        self.graph = None
        self.stream = None
        if device.type == "cuda":
            current = torch.cuda.current_stream(device)
            # Warm-up and capture have to be on one stream, and not on the default one.
            self.stream = torch.cuda.Stream(device) if current == torch.cuda.default_stream(device) else current
            self.stream.wait_stream(current)
            torch.cuda.set_stream(self.stream)

    def __call__(self):
        if self.graph is not None:
            self.graph.replay()
        elif self.stream is None or self.left > 0:
            self.left -= 1
            self.body()
        else:
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            # thread_local: the thread that pins batches calls the driver, which else ends a capture.
            with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
                self.body()
            self.graph.replay()
