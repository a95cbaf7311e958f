"""Which texts tell two engines apart?  Encoded at open with both; milliseconds."""

# Scripts, code, digits, white space runs, emoji, combining marks: where pre-tokenizers differ if they differ at all.
PROBE = (
    "",
    "Hello, world! It's 12,345.67 o'clock; they're HERE'S. I'LL WE'VE ’s",
    "  two  spaces\t\ttabs\n\n\nlines\r\nand trailing   ",
    "\n \n  \n\t \r\n \u3000\u2003x \u00a0 y  z\x0b\x0c\x85.",
    "def f(x):\n    return {'a': [x ** 2, None], \"b\": f'{x!r}'}  # comment\n",
    '#include <map>\nint main(){for(int i=0;i<10;++i)printf("%d\\n",i);return 0;}//!?...===>>>',
    '{"key": [1, 2.5e-3, true, null], "väl": "\\u00e9\\n"}\n<div class="x">&amp;</div>\n\\frac{a}{b}^2 $x_1$',
    "Grüße aus Köln, señor; naïve café — “quoted” … Ω≈ç√∫ ﬁ ½ ² Ⅷ ﷺ İı ẞß",
    "你好，世界！今天天气很好。 こんにちは、ｶﾀｶﾅ 안녕하세요 1２３ ①",
    "Привет мир مرحبا بالعالم שָׁלוֹם नमस्ते हिन्दी สวัสดี ສະບາຍດີ ქართული Հայերեն አማርኛ தமிழ் ខ្មែរ မြန်မာ",
    "🙂👩‍👩‍👧‍👦🇩🇪👍🏽 e\u0301 \u00e9 \u1e9b\u0323 q\u0307\u0323 \u1100\u1161\u11a8 \u2028 \u00a0 \ufeff \x00 \x7f \u200b\u200d",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀 𠀋 \ue000 \U000f0041 \U0010fffd \ufffd \u0378",
    "https://example.org/a?b=1&c=%20#x <b>tag</b> <|endoftext|> </s> [INST] <s> ▁ ▁▁x <0x0A> Ġ Ċ",
    "1234567890 " * 8 + "a" * 300 + " " * 70 + "-" * 70 + "\n" * 20,
)


def added_probe(added: list[str]) -> list[str]:
    """Texts around added tokens: between words, between blanks, doubled, cut short; the first and last of many."""
    chosen = added if len(added) <= 40 else [*added[:30], *added[-10:]]
    texts = [f"word{token}word {token} \n{token}{token}\t{token[:-1]} {token.upper()}" for token in chosen]
    return [*texts, "".join(chosen), " ".join(chosen)]
