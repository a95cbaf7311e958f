"""What tells files and folders with media from others.  Their modules are imported when the first such file is opened."""

from penstock.extras.media.samples import MEDIA_COLUMNS, METADATA_NAMES
from penstock.sources.formats import Format, with_packed

WEBDATASET = Format(
    name="webdataset",
    code="penstock.extras.media.webdataset:WEBDATASET",
    suffixes=(*with_packed(".tar"), ".tgz"),
    aliases=("wds",),
)
MEDIA_FOLDER = Format(
    name="media_folder",
    code="penstock.extras.media.media_folder:MEDIA_FOLDER",
    folder="penstock.extras.media.media_folder:is_media_folder",
    marks=METADATA_NAMES,
    aliases=("imagefolder", "audiofolder", "videofolder"),
    not_read={
        f".{extension}": f"this file is one of the {column}, not a dataset; pass its folder, with a {METADATA_NAMES[0]} that names the "
        f"files or with a text file of the same name next to each, or pass a file of records that contain the paths"
        for extension, column in MEDIA_COLUMNS.items()
    },
)
SAMPLE_FOLDER = Format(
    name="sample_folder",
    code="penstock.extras.media.media_folder:SAMPLE_FOLDER",
    folder="penstock.extras.media.media_folder:is_sample_folder",
    marks=None,
)
