"""Moves batches and a module to the device in the ways that scripts have, inside of the loop."""

import torch
from common import Data, end, net, said

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
device = torch.device("cuda")
for at, (x, y) in enumerate(torch.utils.data.DataLoader(Data(), 6)):
    if at % 3 == 0:
        x, y = x.to("cuda", non_blocking=True), y.cuda()
    else:
        x, y = x.to(device, torch.float64).float(), y.to(device=0)
    if at == 4:
        model.to("cuda").cuda()
    if at == 5:
        try:
            x.to("cuda:99")
        except RuntimeError as error:
            print(error)
    optimizer.zero_grad()
    loss = said(torch.nn.functional.mse_loss(model(x), y))
    loss.backward()
    optimizer.step()
end(model)
