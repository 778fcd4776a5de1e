"""workers.gguf_file: what gguf writes is read back, and what is no GGUF file is refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType, GGUFValueType
from hypothesis import given
from hypothesis import strategies as st

from workers import gguf_file

KINDS = [
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_1,
]


def write(path: Path, metadata: dict, tensors: dict) -> Path:
    """Metadata values are (value, type); tensors are (array, kind)."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, (value, kind) in metadata.items():
        if kind is GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_of_every_type(tmp_path):
    metadata = {
        "a.text": ("Ω of “three” bytes", GGUFValueType.STRING),
        "a.small": (-7, GGUFValueType.INT8),
        "a.large": (2**40, GGUFValueType.UINT64),
        "a.real": (0.5, GGUFValueType.FLOAT32),
        "a.switch": (True, GGUFValueType.BOOL),
        "a.texts": (["", "b", "ccc"], GGUFValueType.ARRAY),
        "a.numbers": ([1, 2, -3], GGUFValueType.ARRAY),
    }
    read = gguf_file.read(write(tmp_path / "some.gguf", metadata, {}))
    assert read.metadata == {
        "general.architecture": "llama",
        **{key: value for key, (value, _) in metadata.items()},
    }
    assert read.tensors == {}


@given(rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 99))
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_are_those_of_the_reader_of_gguf(tmp_path_factory, kind, rows, blocks, seed):
    values = np.random.default_rng(seed).normal(size=(rows, 32 * blocks)).astype(np.float32)
    path = tmp_path_factory.mktemp("gguf") / "some.gguf"
    write(path, {}, {"first.weight": (values, kind), "second.weight": (values[:1], kind)})
    read = gguf_file.read(path)
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert list(read.tensors) == list(expected)
    for name, tensor in read.tensors.items():
        theirs = gguf.quants.dequantize(expected[name].data, expected[name].tensor_type)
        assert tensor.shape == theirs.shape
        assert np.array_equal(tensor.dequantized(), theirs)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "some.gguf").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(ValueError, match="starts with b'GGUF', this one with b'PK"):
        gguf_file.read(tmp_path / "some.gguf")


def test_another_version_is_refused(tmp_path):
    (tmp_path / "some.gguf").write_bytes(b"GGUF\x09\0\0\0" + bytes(16))
    with pytest.raises(ValueError, match="GGUF version 9"):
        gguf_file.read(tmp_path / "some.gguf")


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    values = np.ones((2, 32), np.float32)
    tensors = {"first.weight": (values, GGMLQuantizationType.F32)}
    metadata = {"a.texts": (["b", "ccc"], GGUFValueType.ARRAY)}
    whole = write(tmp_path / "some.gguf", metadata, tensors).read_bytes()
    for length in range(4, len(whole), 5):
        (tmp_path / "some.gguf").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"ends before|buffer|offset"):
            gguf_file.read(tmp_path / "some.gguf")
