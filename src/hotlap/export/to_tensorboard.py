"""TensorBoard event files, written by TensorBoard's own writer."""

from pathlib import Path

from ._base import PREFIX, Target, load
from .series import Series, labels, scalars, totals


def write(series: Series, path: Path) -> list[str]:
    """A folder with one run a rank: scalars by step, at the time they were taken; those of the diagnosis at the last
    step, and the verdict as text. TensorBoard keeps scalars as 32-bit floats."""
    writers = load("tensorboard.summary.writer.event_file_writer", "tensorboard")
    for at, rank in enumerate(series.folder.ranks):
        writer = writers.EventFileWriter(str(path / f"rank-{rank.number}"))
        last, time = 0, series.run.started
        for step in rank.steps:
            last, time = step.step, step.time
            found = {f"{PREFIX}/{name}": value for name, value in scalars(step, series.clock).items()}
            writer.add_event(_event(found, last, time))
        if series.diagnosis is not None and at == 0:
            found = {f"{PREFIX}-run/{name}": value for name, value in totals(series.diagnosis).items()}
            writer.add_event(_event(found, last, time))
            writer.add_event(_text(f"{PREFIX}-run/verdict", _said(series), last, time))
        writer.close()
    return [f"tensorboard --logdir {path}"]


def _event(values: dict[str, float], step: int, time: float) -> object:
    event_pb2 = load("tensorboard.compat.proto.event_pb2", "tensorboard")
    summary_pb2 = load("tensorboard.compat.proto.summary_pb2", "tensorboard")
    points = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return event_pb2.Event(wall_time=time, step=step, summary=summary_pb2.Summary(value=points))


def _text(tag: str, text: str, step: int, time: float) -> object:
    """As the text plugin reads it: a tensor of strings."""
    event_pb2 = load("tensorboard.compat.proto.event_pb2", "tensorboard")
    summary_pb2 = load("tensorboard.compat.proto.summary_pb2", "tensorboard")
    tensor_pb2 = load("tensorboard.compat.proto.tensor_pb2", "tensorboard")
    plugin = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))
    words = tensor_pb2.TensorProto(dtype="DT_STRING", string_val=[text.encode()])
    point = summary_pb2.Summary.Value(tag=tag, metadata=plugin, tensor=words)
    return event_pb2.Event(wall_time=time, step=step, summary=summary_pb2.Summary(value=[point]))


def _said(series: Series) -> str:
    """The labels as an indented block, which Markdown shows as it is."""
    return "\n".join(f"    {name}: {text!r}" for name, text in labels(series).items())


TARGET = Target("tensorboard", "", write)
