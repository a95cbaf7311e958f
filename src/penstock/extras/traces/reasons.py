"""Why a session has no sample: the words of reports."""

from penstock.reasons import Reason

SECRET = Reason("the session holds secrets", "pass secrets='mask' or 'keep'")
