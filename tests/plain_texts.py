"""Ordinary text in many scripts, and mixtures of it with the names of special tokens."""

TEXTS = [
    "",
    "Hello world",
    " leading and trailing  ",
    "It's we're I'LL they'Ve don't",
    "1234567890 3.14159 1,000,000 0x1F",
    "\u00bd\u2167\u0663\u0664\u096a one\u00b2",
    "a\n\n\nb\r\nc\rd\n \n\t\te",
    "   \n   ",
    "\t",
    "    def f(x):\n        return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 3; }",
    '{"a": "b", "c": [1, 2, null]}',
    "a (red:1.2) ((cat)) \\(x\\)",
    "{red|blue}",
    "https://a.b/c // note",
    "SELECT * FROM t WHERE x >= 10 AND y != 'z';",
    '<div class="x">&nbsp;</div>',
    "$$\\int_0^\\infty e^{-x^2} dx = \\frac{\\sqrt{\\pi}}{2}$$",
    "snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE",
    "!!!??? ... \u2026 --- \u2014 ~~~ ===",
    "caf\u00e9 na\u00efve \u00fcber \u0153uvre",
    "cafe\u0301 nai\u0308ve u\u0308ber",
    "\u212b \u2126 \ufb01 \uff21",
    "Tie\u0302\u0301ng Vi\u1ec7t",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u4eba\u529b\u8d44\u6e90\u548c\u793e\u4f1a\u4fdd\u969c\u5c40\u53d1\u5e03\u4e86\u901a\u77e5",
    "\u6211\u57282024\u5e745\u67081\u65e5\u53bb\u4e86\u5317\u4eac\u3002",
    "\u7e41\u9ad4\u4e2d\u6587\u8207\u7b80\u4f53",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u30ab\u30bf\u30ab\u30ca",
    "\uac00\ub098\ub2e4 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0628\u0650\u0633\u0652\u0645\u0650 \u0671\u0644\u0644\u0651\u064e\u0647\u0650",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0915\u094d\u0937",
    "\u09ac\u09be\u0982\u09b2\u09be \u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0c24\u0c46\u0c32\u0c41\u0c17\u0c41",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a\u0e17\u0e33",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430? \u0401\u0436 \u0439",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \u2764\ufe0f",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 1\ufe0f\u20e3",
    "zero\u200bwidth\u200cjoin\u200der\ufeff",
    "nbsp\u00a0and\u3000wide\u2003space \u2028 sep",
    "\x00\x01\x7f\x85 control",
    "\ufdd0\uffff\U0010ffff nonchar",
    "\U00020000\U0002a6d6 rare \U0001d54f",
    "x" * 300,
    " " * 77 + "y",
    "=" * 65 + "\n" * 9,
]


def random_text(rng, names):
    """Special names, whole and in fragments, between letters of many scripts."""
    pieces = []
    for _ in range(rng.randrange(1, 12)):
        name = rng.choice(names)
        start, end = sorted(rng.choices(range(len(name) + 1), k=2))
        pieces += [rng.choice([name, name[start:end], name[:start], name[start:], rng.choice(TEXTS)[:9]])]
    return "".join(pieces)
