"""Data that means harm: whatever tries to leave its place in a page, to run, or to call home."""

CANARY = "canary.invalid"  # a host that does not exist; a request for it is a failure

TEXTS = [
    f"</script><script>console.log('ran'); fetch('http://{CANARY}/fetch')</script>",
    f"<img src=x onerror=\"console.log('ran'); new Image().src='http://{CANARY}/error'\">",
    f'"><svg onload="console.log(`ran`)"><image href="http://{CANARY}/svg"/></svg>',
    f"' onmouseover='console.log(1)' style='background:url(http://{CANARY}/style)",
    f'<link rel="stylesheet" href="http://{CANARY}/link"><style>@import url("http://{CANARY}/import");</style>',
    f'<iframe src="http://{CANARY}/frame"></iframe><object data="http://{CANARY}/object"></object>',
    f'<a href="javascript:console.log(\'ran\')">javascript:</a><base href="http://{CANARY}/">',
    f'<meta http-equiv="refresh" content="0;url=http://{CANARY}/refresh">',
    "</title></style></textarea></template><!-- <![CDATA[ ]]> --> &lt;b&gt; &#60;script&#62; &amp;",
    "null \x00, escape \x1b[31m, bell \x07, \x7f, \x85, next line \u2028, paragraph \u2029",
    "bidi \u202egnirts\u202c, isolate \u2066x\u2069, hidden \u200b\ufeff\u00ad, tag \U000e0041, blanks \u00a0\u3000",
    "שלום עולם, مرحبا, 日本語, e\u0301" + "\u0301" * 60 + ", 👩‍👩‍👧",
    "\n\n\t\r\n   leading and trailing   \n",
]
FILE_NAME = "<img src=x onerror=console.log('ran')> \"&'\u202e.jsonl"
SOURCE_NAME = "</bdi><script>console.log('ran')</script>\u202e\"'&"
LONG = "<b>long</b> " * 90_000  # about a million characters
