"""Versions of what a process imported: by the metadata that lies beside it."""

from pathlib import Path

import msgspec
import pytest

from hotlap.launch.packages import packages, told, versions_of
from hotlap.records.files import write_record
from hotlap.records.run import Facts, Versions
from hotlap.runs.folder import RunFolder

FACTS = Facts(pid=1, rank=0, world=1, argv=("t.py",), python="3.12.1", torch="2.11.0+cu130", cuda="13.0", nccl="2.28.9")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Packages of all kinds: with their name, with another, two that share one, and what is none."""
    names = {
        "torch-2.11.0+cu130.dist-info": "torch\n",
        "typing_extensions-4.12.2.dist-info": "",
        "PyYAML-6.0.2.dist-info": "_yaml\nyaml\n",
        "pillow-11.0.0.egg-info": "PIL",
        "one_half-1.0.dist-info": "both",
        "other_half-2.0.dist-info": "both",
        "hotlap-0.1.0.dist-info": "hotlap",
        "notes.txt": "",
    }
    for name, top_level in names.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "top_level.txt").write_text(top_level)
    return tmp_path


def test_names_are_matched_as_indexes_do_or_by_what_they_hold(installed: Path) -> None:
    asked = ("torch", "typing_extensions", "yaml", "PIL", "both", "hotlap", "not_there")
    assert packages(installed, asked) == {
        "torch": "2.11.0+cu130",
        "typing-extensions": "4.12.2",
        "PyYAML": "6.0.2",
        "pillow": "11.0.0",
    }
    assert packages(installed, ()) == {} and packages(installed / "absent", asked) == {}
    assert packages(Path("\0"), asked) == {}


def test_what_was_installed_from_a_repository_has_no_version_of_an_index(installed: Path) -> None:
    for name in ("PyYAML-6.0.2.dist-info", "torch-2.11.0+cu130.dist-info"):
        (installed / name / "direct_url.json").write_text('{"url": "ssh://git@corp/ours", "vcs_info": {}}')
    assert packages(installed, ("yaml", "torch")) == {"PyYAML": "6.0.2+direct", "torch": "2.11.0+cu130.direct"}


def test_what_a_process_told(installed: Path) -> None:

    facts = msgspec.structs.replace(FACTS, imported={str(installed): ("yaml", "torch"), "/absent": ("numpy",)})
    wanted = Versions(
        python="3.12.1", torch="2.11.0+cu130", cuda="13.0", nccl="2.28.9",
        packages={"PyYAML": "6.0.2", "torch": "2.11.0+cu130"},
    )  # fmt: skip
    assert told(facts) == wanted


def test_the_first_rank_that_left_some_tells(tmp_path: Path) -> None:
    for name in ("rank-0", "rank-1", "rank-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "rank-1" / "facts.json").write_text("{torn")
    ranks = RunFolder(tmp_path).ranks
    assert versions_of(ranks) is None
    write_record(tmp_path / "rank-2" / "facts.json", FACTS)
    found = versions_of(ranks)
    assert found is not None and (found.torch, found.packages) == ("2.11.0+cu130", {})
