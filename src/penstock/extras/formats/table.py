"""What tells files of these formats from others.  Their modules are imported when the first such file is opened."""

from penstock.sources.formats import Format

# Two files of one name: `.bin` has the ids, `.idx` says where sequences begin.
MEGATRON = Format(
    name="megatron",
    code="penstock.extras.formats.tokens:MEGATRON",
    suffixes=(".bin", ".idx"),
    index=".idx",
)
TOKEN_BIN = Format(
    name="token_bin",
    code="penstock.extras.formats.tokens:TOKEN_BIN",
    suffixes=(".bin", ".npy"),
    is_unsure=True,
    part_of={".csv.gz": ".npy"},  # OLMo's borders of texts
)
DATATROVE = Format(
    name="datatrove", code="penstock.extras.formats.tokens:DATATROVE", suffixes=(".ds",)
)
MDS = Format(
    name="mds",
    code="penstock.extras.formats.mds:MDS",
    folder="penstock.extras.formats.mds:is_mds_folder",
    marks=("index.json",),
)
LITDATA = Format(
    name="litdata",
    code="penstock.extras.formats.litdata:LITDATA",
    folder="penstock.extras.formats.litdata:is_litdata_folder",
    marks=("index.json",),
)
PARQUET_CHUNKS = Format(
    name="parquet_chunks",
    code="penstock.extras.formats.parquet_chunks:PARQUET_CHUNKS",
    folder="penstock.extras.formats.chunks:is_parquet_chunk_folder",
    marks=("metadata.json",),
)
PT = Format(
    name="pt",
    code="penstock.extras.formats.pt_chunks:PT",
    folder="penstock.extras.formats.chunks:is_chunk_folder",
    marks=("metadata.json",),
    not_read={
        ".pt": "is a chunk of tensors; open its folder, which needs a metadata.json that lists the chunks"
    },
)
YAML = Format(
    name="yaml",
    code="penstock.extras.formats.yaml_list:YAML",
    suffixes=(".yaml", ".yml"),
    is_list=True,
    aliases=("yml",),
)
