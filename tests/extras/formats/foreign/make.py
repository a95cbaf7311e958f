"""Write the files in this folder with the tools whose formats they have.  `expected.json` is what was given to the tools.

Made with megatron-core 0.16.1, datatrove 0.10.1, mosaicml-streaming 0.13.0 and litdata 0.2.76, in an environment of their own:

    python tests/extras/formats/foreign/make.py

Each tool reads some of its files back first: all sequences of Megatron, the first tokens of datatrove, the uncompressed tokens of MDS, the
first block of tokens and one item of litdata.  Compressed MDS, its other types, and litdata's other folders are only written.  nanoGPT,
llm.c and OLMo have no package; tests write those themselves.
"""

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
EXPECTED: dict[str, Any] = {}
DOCUMENTS = [
    [(17 * row + 3 * place) % 1000 + 1 for place in range(3 + 5 * row % 13)] for row in range(12)
]
IMAGE = np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3)


def fresh(name: str) -> Path:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    return folder


def megatron() -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    folder = fresh("megatron")
    folder.mkdir()
    for name, dtype, lengths in (("docs", np.uint16, None), ("sentences", np.int32, 3)):
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype)
        sequences = []
        for document in DOCUMENTS:
            pieces = (
                [document]
                if lengths is None
                else [document[i : i + 3] for i in range(0, len(document), 3)]
            )
            builder.add_document(torch.tensor(document), [len(piece) for piece in pieces])
            sequences += pieces
        builder.finalize(str(folder / f"{name}.idx"))
        found = IndexedDataset(str(folder / name))
        assert [found[i].tolist() for i in range(len(found))] == sequences
        EXPECTED[f"megatron/{name}"] = {"sequences": sequences, "documents": DOCUMENTS}


def datatrove() -> None:
    from datatrove.io import get_datafolder
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile
    from datatrove.utils.dataset import DatatroveFileDataset

    folder = fresh("datatrove")
    for name, size, with_loss in (("plain", 2, False), ("loss", 4, True)):
        out = TokenizedFile(
            get_datafolder(str(folder)),
            f"{name}.ds",
            save_index=True,
            save_loss_metadata=with_loss,
            token_size=size,
        )
        masks = [[int(place % 3 != 0) for place in range(len(document))] for document in DOCUMENTS]
        for document, mask in zip(DOCUMENTS, masks, strict=True):
            out.write(document, np.array(mask) if with_loss else None)
        out.close()
        first = DatatroveFileDataset(str(folder / f"{name}.ds"), 8, token_size=size)[0]["input_ids"]
        assert first.tolist() == [*DOCUMENTS[0], *DOCUMENTS[1], *DOCUMENTS[2]][:9]
        EXPECTED[f"datatrove/{name}"] = {
            "documents": DOCUMENTS,
            "masks": masks if with_loss else None,
        }


def mds() -> None:
    from PIL import Image
    from streaming import LocalDataset, MDSWriter

    tokens = {"tokens": "ndarray:int32", "source": "str"}
    for name, compression in (
        ("tokens", None),
        *((each, each) for each in ("zstd", "gz", "bz2", "br", "snappy")),
    ):
        folder = fresh(f"mds/{name}")
        with MDSWriter(
            out=str(folder), columns=tokens, compression=compression, size_limit=700
        ) as out:
            for row, document in enumerate(DOCUMENTS):
                out.write({"tokens": np.array(document, np.int32), "source": f"Quelle {row} ü"})
        if compression is None:
            found = LocalDataset(str(folder))
            assert [found[i]["tokens"].tolist() for i in range(len(found))] == DOCUMENTS
        EXPECTED[f"mds/{name}"] = [
            [document, f"Quelle {row} ü"] for row, document in enumerate(DOCUMENTS)
        ]
    image = Image.fromarray(IMAGE)
    values = {
        "bytes": b"\x00\xff",
        "str": "Text ü",
        "int": -5,
        "str_int": 10**30,
        "str_float": 0.1,
        "str_decimal": Decimal("1.50"),
        "json": {"a": [1, None]},
        "ndarray": np.arange(6, dtype=np.int16).reshape(2, 3),
        "ndarray:float32": np.ones(300, np.float32),
        "ndarray:uint8:2,2": np.array([[1, 2], [3, 4]], np.uint8),
        "pil": image,
        "png": image,
        "jpeg": image,
        "list[png]": [image, image],
        "list[pil]": [image],
        "jpeg_array": [b"\xff\xd8a", b"\xff\xd8bc"],
        **{
            kind: getattr(np, kind)(3)
            for kind in (
                "uint8",
                "uint16",
                "uint32",
                "uint64",
                "int8",
                "int16",
                "int32",
                "int64",
                "float16",
                "float32",
                "float64",
            )
        },
    }
    with MDSWriter(
        out=str(fresh("mds/types")), columns={f"c {kind}": kind for kind in values}
    ) as out:
        out.write({f"c {kind}": value for kind, value in values.items()})
    with MDSWriter(out=str(fresh("mds/pickled")), columns={"x": "pkl"}) as out:
        out.write({"x": {"a": 1}})


def litdata() -> None:
    import torch
    from litdata.streaming import Cache, TokensLoader
    from litdata.streaming.dataset import StreamingDataset

    def write(name: str, items: list[Any], **options: Any) -> None:
        folder = fresh(f"litdata/{name}")
        folder.mkdir(parents=True)
        cache = Cache(str(folder), chunk_size=options.pop("chunk_size", 5), **options)
        for row, item in enumerate(items):
            cache[row] = item
        cache.done()
        cache.merge()

    tensors = [torch.tensor(document, dtype=torch.int32) for document in DOCUMENTS]
    write("tokens", tensors, item_loader=TokensLoader(block_size=4), chunk_size=60)
    found = StreamingDataset(str(HERE / "litdata/tokens"), item_loader=TokensLoader(block_size=4))
    assert found[0].tolist() == DOCUMENTS[0] + DOCUMENTS[1][:1]
    items = [
        {
            "input_ids": tensor,
            "n": row,
            "x": row / 4,
            "ok": row % 2 == 0,
            "text": f"Zeile {row} ü",
            "raw": bytes([row]),
            "grid": np.full((2, row % 3 + 1), row, np.uint16),
            "matrix": torch.full((2, 2), row),
            "flat": np.arange(row, dtype=np.int64),
        }
        for row, tensor in enumerate(tensors)
    ]
    write("dict", items)
    write("zstd", items, compression="zstd", compression_level="chunk")
    write("framed", items[:2], compression="zstd")
    write("arrow", [{"text": "a", "answers": [{"n": 1}] * (row + 1)} for row in range(2)])
    write("list", [[tensor, row] for row, tensor in enumerate(tensors)])
    write("pickled", [{"x": {1, 2}} for _ in range(3)])
    found = StreamingDataset(str(HERE / "litdata/dict"))
    assert found[3]["input_ids"].tolist() == DOCUMENTS[3]
    EXPECTED["litdata"] = DOCUMENTS


if __name__ == "__main__":
    for write_format in (megatron, datatrove, mds, litdata):
        write_format()
    (HERE / "expected.json").write_text(json.dumps(EXPECTED))
