"""Two models that learn in turns: `attached`, as where a detach was forgotten, or `detached`; zeroed to `none` or to `zero`."""

import sys

import torch
from common import end, net, said

kind, to_none = sys.argv[1], sys.argv[2] == "none"
generator, discriminator = net(), net()
optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (generator, discriminator)]
for _ in range(30):
    fake = generator(torch.randn(6, 4)).expand(6, 4)
    optimizers[1].zero_grad(set_to_none=to_none)
    said(discriminator(fake.detach() if kind == "detached" else fake).square().mean()).backward()  # line: learns
    optimizers[1].step()
    optimizers[0].zero_grad(set_to_none=to_none)
    said(-discriminator(generator(torch.randn(6, 4)).expand(6, 4)).mean()).backward()
    optimizers[0].step()
end(generator)
