"""A device goes by its name, and one that is not there is refused."""

import pytest
import torch

from equidp.errors import SettingError
from equidp.training.device import chosen_device
from support.errors import raises_field


@pytest.fixture
def gpus(monkeypatch):
    """Make PyTorch count this many CUDA devices, and MPS or not."""

    def there(cuda=0, mps=False):
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.mps, "device_count", lambda: int(mps))

    return there


def test_auto_takes_cuda_then_mps_then_the_cpu(gpus):
    for there, expected in (((2, True), "cuda"), ((0, True), "mps"), ((0, False), "cpu")):
        gpus(*there)
        assert chosen_device("auto") == torch.device(expected)


@pytest.mark.parametrize(("name", "cuda"), [("cuda", 0), ("cuda:3", 2), ("mps", 1), ("gpu", 1)])
def test_a_device_that_is_not_there_is_refused(gpus, name, cuda):
    gpus(cuda)
    with raises_field(SettingError, "device", name):
        chosen_device(name)


def test_each_process_of_torchrun_takes_its_own_device(gpus, monkeypatch):
    gpus(cuda=2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (str(chosen_device("cuda")), str(chosen_device("cuda:0"))) == ("cuda:1", "cuda:0")
    assert str(chosen_device("auto")) == "cuda:1"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with raises_field(SettingError, "device", "2 CUDA"):
        chosen_device("cuda")
