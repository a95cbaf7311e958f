"""Why a record with media has no sample: the words of reports."""

from penstock.reasons import Reason

BAD_MEDIA = "bad_media"

MISSING_OR_BROKEN = Reason(
    "an image, video or audio is missing, broken or in no place",
    "fix the file or the record",
    is_refusal=True,
)
BAD_MEMBER = Reason("a file of the sample cannot be read", 'fix the record, or pass on_bad="skip"')
BAD_TAR = Reason("the tar is damaged from here on", "make the tar again")
SPLIT_SAMPLE = Reason(
    "the files of the sample are not neighbours in the tar", "sort the tar by name"
)
