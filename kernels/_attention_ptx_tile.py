"""The steps of a tile in the PTX of kernels/_attention_ptx.py.

    scores   of a warp's 16 slots: products, then what is made of them, and their maxima, which the warps exchange
    weights  under the running maximum, rounded to fp16, which the warps then exchange
    sums     of a warp's quarter of the channels

Lane 4 g + t holds, of a product of 16 x 8 outputs, rows g and g + 8 and columns 2 t and 2 t + 1. For lane and warp w:

    keys     slots 16 w + g and + 8, channels 64 j + 16 t .. + 15, as stored: word v of them is half of the operand of
             the product 2 j + v / 2 over 32 channels, and the queries' digits lie in that order
    weights  slots 16 s + g and + 8 are a pair; lane t sums over the pairs t and t + 4 of every 16 slots
    sums     channels (D / 4) w + (D / 32) g + 4 x + c of its word x are row g (c even) or g + 8 of product 2 x + c / 2
"""

WARPS = 4
# Where a block's time is taken in nanoseconds, the last three for the part's last tile; and, in cycles, where that of a
# turn of the loop is taken, the last one's staying.
STAMPS = ("ready", "waited", "loads", "queries", "scores", "weights", "sums", "stored")
TURN_STAMPS = ("begun", "requested", "summed", "asked", "weighed", "taken", "met")


class Tile:
    """Text, names of registers and the steps."""

    def __init__(self, dim, groups, bf16, dependent, without, stamps):
        self.dim, self.n, self.bf16, self.dependent = dim, groups, bf16, dependent
        self.without, self.stamps = without, stamps
        self.j, self.x = dim // 64, dim // 128
        self.lines, self.registers, self.labels = [], {}, 0
        self.again = None
        self.q_at = self.bytes_before_queries
        self.p_at = self.q_at + self.query_bytes
        self.m_at = self.p_at + 2 * groups * 1024
        self.total_at = self.m_at + 1024
        self.seen_at = self.total_at + 512
        self.step_at = self.seen_at + 128
        self.next_at = self.step_at + 128
        self.bytes = self.next_at + 16

    bytes_before_queries = 0

    @property
    def query_bytes(self):
        return 16 * self.n * self.dim

    def op(self, *lines):
        self.lines += lines

    def reg(self, kind, *names):
        """Declares registers once; returns the only name or all of them."""
        self.registers |= dict.fromkeys(names, kind)
        return names[0] if len(names) == 1 else list(names)

    def label(self):
        self.labels += 1
        return f"AT_{self.labels}"

    def text(self):
        declared = self.shared()
        for kind in dict.fromkeys(self.registers.values()):
            declared.append(f".reg .{kind} " + ", ".join(n for n, k in self.registers.items() if k == kind) + ";")
        return "{\n" + "\n".join(declared + self.lines) + "\n}\n"

    def shared(self):
        """Declares shared memory."""
        return [f".shared .align 128 .b8 shared_bytes[{self.bytes}];"]

    def find_shared(self):
        """Where it is, into `base`."""
        self.op("mov.u32 base, shared_bytes;")

    def acc(self, i, n):
        return self.reg("f32", *(f"acc_{i}_{n}_{c}" for c in range(4)))

    def s(self, n):
        return self.reg("f32", *(f"s_{n}_{c}" for c in range(4)))

    def sum(self, digit, n):
        return self.reg("b32", *(f"{('high', 'low')[digit]}_{n}_{c}" for c in range(4)))

    def key(self, half, j):
        return self.reg("b32", *(f"k_{half}_{j}_{w}" for w in range(4)))

    def value(self, s, r):
        return [self.reg("b32", f"v_{s}_{r}_{x}") for x in range(self.x)]

    def by_column(self, name):
        """A float for each of a lane's columns."""
        return [self.reg("f32", f"{name}_{n}_{e}") for n in range(self.n) for e in range(2)]

    asks_early = False  # whether products go on while a warp works on something else

    def first_loads(self):
        """Asks for the first tile."""
        self.load_keys(range(self.j))
        self.load_scales()
        self.load_values(range(4))

    def later_loads(self):
        """Asks for what is wanted after the first scores, where `first_loads` does not."""

    def request(self):
        """Asks for more, where that is not done as soon as registers are free."""

    def arrived(self, pending):
        """Waits until all but the last `pending` requests are in shared memory, of a warp's own."""

    def flip(self, name):
        self.op(f"sub.u32 {name}, {name}2, {name};")

    def load_keys(self, columns, guard=""):
        for j in columns:
            for half in range(2):
                at = half * 8 * self.dim + j * 64
                self.op(f"{guard}ld.global.L1::no_allocate.v4.b32 {{{', '.join(self.key(half, j))}}}, [kptr+{at}];")

    def load_values(self, steps, guard=""):
        for s in steps:
            for r, row in enumerate((0, 8, 4, 12)):
                words, at = self.value(s, r), (16 * s + row) * self.dim
                kind = f"v{self.x}.b32" if self.x > 1 else "b32"
                self.op(f"{guard}ld.global.L1::no_allocate.{kind} {{{', '.join(words)}}}, [vptr+{at}];")

    def load_scales(self):
        """Of the slots 16 w + g and + 8 of the tile at `scaleslot`; zeros from `end` on."""
        scales = self.reg("f32", "ks_0", "ks_1", "vs_0", "vs_1")
        self.op("setp.lt.u32 p0, scaleslot, end;", "add.u32 u, scaleslot, 8;", "setp.lt.u32 p1, u, end;")
        self.op(*(f"mov.f32 {scale}, 0f00000000;" for scale in scales))
        for i, (scale, pointer) in enumerate(zip(scales, ("ksptr", "ksptr", "vsptr", "vsptr"), strict=True)):
            self.op(f"@p{i % 2} ld.global.b32 {scale}, [{pointer}+{32 * (i % 2)}];")
        self.op("add.u32 scaleslot, scaleslot, stride;", "mad.wide.u32 ksptr, stride, 4, ksptr;")
        self.op("mad.wide.u32 vsptr, stride, 4, vsptr;")

    def pairs(self, target, first, second, selector):
        """Two codes as a pair in fp16, exactly: the bytes code + 128 of 1024 + code + 128, less 1152."""
        self.op(f"prmt.b32 {target}, {first}, {second}, {selector};")
        self.op(f"lop3.b32 {target}, {target}, mask, bias, 0x6a;", f"sub.rn.f16x2 {target}, {target}, bias;")

    def multiply(self, d, a, b, c):
        names = (", ".join(x) for x in (d, a, b, c))
        self.op("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " + ", ".join(f"{{{x}}}" for x in names) + ";")

    def multiply_codes(self, d, a, b, c):
        names = (", ".join(x) for x in (d, a, b, c))
        self.op("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 " + ", ".join(f"{{{x}}}" for x in names) + ";")

    def across(self, values, name, largest):
        """Reduces a lane's columns over the eight lanes g; the register of the one column that is left, as in `mw`."""
        values = values + values[: 8 - len(values)] if len(values) >= 4 else (values * 8)[:8]
        how = "max.f32" if largest else "add.f32"
        for step, (bit, distance) in enumerate(((1, 4), (2, 8), (4, 16))):
            self.op(f"and.b32 u, g, {bit};", "setp.ne.u32 p, u, 0;")
            half, reduced = len(values) // 2, []
            for i in range(half):
                keep, send, sum_ = self.reg("f32", *(f"{name}_{step}_{i}_{kind}" for kind in ("a", "b", "c")))
                self.op(f"selp.f32 {keep}, {values[i + half]}, {values[i]}, p;")
                self.op(f"selp.f32 {send}, {values[i]}, {values[i + half]}, p;")
                self.op(f"shfl.sync.bfly.b32 {send}, {send}, {distance}, 31, 0xffffffff;")
                self.op(f"{how} {sum_}, {keep}, {send};")
                reduced.append(sum_)
            values = reduced
        return values[0]

    def scores(self):
        self.ask_scores()
        self.take_scores()

    def ask_scores(self):
        """Multiplies the next tile's keys by both digits of the queries, exactly, in int32. Asks for the keys after."""
        self.op("setp.gt.u32 p2, keyleft, 1;", f"mad.wide.u32 kptr, stride, {self.dim}, kptr;")
        for j in range(self.j):
            keys = [self.key(half, j) for half in range(2)]
            if "scores" in self.without:
                self.keep(keys[0] + keys[1])
            else:
                self.multiply_queries(j, keys)
            if "loads" not in self.without:
                self.load_keys([j], "@p2 ")
                self.fence()
        self.op("sub.u32 keyleft, keyleft, 1;")

    def multiply_queries(self, j, keys):
        """Two products over 64 channels for every digit and group of columns."""
        operands = [[keys[i % 2][v + i // 2] for i in range(4)] for v in (0, 2)]
        for n in range(self.n):
            for digit in range(2):
                b = self.reg("b32", *(f"b_{digit}_{n}_{i}" for i in range(4)))
                at = ((digit * self.n + n) * self.j + j) * 512
                self.op(f"ld.shared.v4.b32 {{{', '.join(b)}}}, [qa+{at}];")
                for half, words in enumerate(operands):
                    c = ["zero"] * 4 if j == half == 0 else self.sum(digit, n)
                    self.multiply_codes(self.sum(digit, n), words, b[2 * half :][:2], c)

    def take_scores(self):
        """In units of bits and with what their weights' exponents add; a warp's maxima."""
        for n in range(self.n):
            for c, s in enumerate(self.s(n)):
                high, low = self.sum(0, n)[c], self.sum(1, n)[c]
                if "scores" in self.without:
                    self.op(f"mov.f32 {s}, fzero;")
                else:
                    self.op(f"mad.lo.s32 {low}, {high}, 256, {low};", f"cvt.rn.f32.s32 {s}, {low};")
                    self.op(f"mul.f32 {s}, {s}, {self.by_column('step')[2 * n + c % 2]};")
        self.scale()
        tops = [self.reg("f32", f"top_{n}_{e}") for n in range(self.n) for e in range(2)]
        for i, top in enumerate(tops):
            self.op(f"max.f32 {top}, {self.s(i // 2)[i % 2]}, {self.s(i // 2)[2 + i % 2]};")
        self.op(f"@live st.shared.f32 [mw], {self.across(tops, 'top', True)};")
        self.flip("mw")

    def scale(self):
        """Scales the scores and takes out what a column does not see; splits the values' scales."""
        step = self.reg("f32", "ks_0", "ks_1")
        lift, mantissa, inverse = (self.reg("f32", f"{x}_0", f"{x}_1") for x in ("lift", "mantissa", "inverse"))
        for i in range(2):
            self.op(
                f"mov.b32 u, vs_{i};", "max.s32 u, u, 0x21800000;", "shr.s32 v, u, 23;", "min.s32 v, v, 253;",
                "and.b32 u, u, 0x7fffff;", "or.b32 u, u, 0x3f800000;", f"mov.b32 {mantissa[i]}, u;",
                "sub.s32 u, 254, v;", "shl.b32 u, u, 23;", f"mov.b32 {inverse[i]}, u;",
                "sub.s32 v, v, 127;", f"cvt.rn.f32.s32 {lift[i]}, v;",
                f"fma.rn.f32 {lift[i]}, vs_{i}, 0f00000000, {lift[i]};",
            )  # fmt: skip
        for n in range(self.n):
            for c, s in enumerate(self.s(n)):
                self.op(f"fma.rn.f32 {s}, {s}, {step[c // 2]}, {lift[c // 2]};")
        self.load_scales()
        seen, all_seen = self.reg("b32", "seen_0", "seen_1"), self.label()
        self.op(
            "setp.le.u32 p, tileend, length;", "add.u32 tileend, tileend, stride;",
            "mov.b32 w, slot;", "add.u32 slot, slot, stride;",
        )  # fmt: skip
        self.op(f"@p bra {all_seen};", "add.u32 v, w, 8;")
        for n in range(self.n):
            self.op(f"ld.shared.v2.b32 {{{', '.join(seen)}}}, [sa+{32 * n}];")
            for c, s in enumerate(self.s(n)):
                self.op(f"setp.lt.u32 p, {'wv'[c // 2]}, {seen[c % 2]};", f"selp.f32 {s}, {s}, 0fFF800000, p;")
        self.op(f"{all_seen}:")

    def weights(self):
        """Of the tile whose maxima all warps have left, in fp16 into shared memory; the running maximum and sum.

        Lane c has the running maximum of column c.
        """
        m = self.reg("f32", *(f"m_{warp}" for warp in range(WARPS)))
        self.op(
            f"ld.shared.v4.f32 {{{', '.join(m)}}}, [mr];",
            "max.f32 m_0, m_0, m_1;", "max.f32 m_2, m_2, m_3;", "max.f32 m_0, m_0, m_2;", "max.f32 m_0, m_0, peak;",
            "sub.f32 shrink, peak, m_0;", "ex2.approx.ftz.f32 shrink, shrink;", "mov.f32 peak, m_0;",
            "setp.eq.f32 steady, shrink, 0f3F800000;", f"setp.ge.or.u32 steady, lane, {8 * self.n}, steady;",
            "vote.sync.all.pred steady, steady, 0xffffffff;",
        )  # fmt: skip
        columns = list(enumerate(zip(self.of_columns("peak"), self.by_column("total"), strict=True)))
        steps = [self.weights_of(i, *names) for i, names in columns]
        same = self.label()
        self.op(f"@steady bra {same};")
        for shrink, total in zip(self.of_columns("shrink"), self.by_column("total"), strict=True):
            self.op(f"mul.f32 {total}, {total}, {shrink};")
        self.op(f"{same}:")
        for some in (steps[: self.n], steps[self.n :]):  # side by side, so that one waits while another works
            for lines in zip(*some, strict=True):
                self.op(*lines)
        self.flip("mr")
        self.flip("pw")

    def of_columns(self, name):
        """What the lanes of its columns have of `name`, for each of a lane's columns."""
        found = self.reg("f32", *(f"{name}_{i}" for i in range(2 * self.n)))
        for i, register in enumerate(found):
            self.op(f"add.u32 u, columnlane, {8 * (i // 2) + i % 2};")
            self.op(f"shfl.sync.idx.b32 {register}, {name}, u, 31, 0xffffffff;")
        return found

    def weights_of(self, i, peak, total):
        """The steps of one column of a lane."""
        n, e = divmod(i, 2)
        s_low, s_high = self.s(n)[e], self.s(n)[2 + e]
        low, high = self.reg("f32", f"low_{i}", f"high_{i}")
        packed = self.reg("b32", f"packed_{i}")
        return (
            f"sub.f32 {low}, {s_low}, {peak};",
            f"sub.f32 {high}, {s_high}, {peak};",
            f"ex2.approx.ftz.f32 {low}, {low};",
            f"ex2.approx.ftz.f32 {high}, {high};",
            f"fma.rn.f32 {total}, {low}, inverse_0, {total};",
            f"fma.rn.f32 {total}, {high}, inverse_1, {total};",
            f"mul.f32 {low}, {low}, mantissa_0;",
            f"mul.f32 {high}, {high}, mantissa_1;",
            f"cvt.rn.f16x2.f32 {packed}, {high}, {low};",
            f"st.shared.b32 [pw+{256 * n + 32 * e}], {packed};",
        )

    def shrink(self):
        """Brings the sums under the running maximum that the last weights are of."""
        same = self.label()
        self.op(f"@steady bra {same};")
        shrinks = self.of_columns("shrink")
        for i in range(2 * self.x):
            for n in range(self.n):
                for c, acc in enumerate(self.acc(i, n)):
                    self.op(f"mul.f32 {acc}, {acc}, {shrinks[2 * n + c % 2]};")
        self.op(f"{same}:")

    def fence(self):
        """Where loads are not put off any further: a branch that is never taken, for lengths are not negative."""
        if self.again:
            self.op(f"@never bra {self.again};")

    def sums(self):
        """Adds the tile whose weights all warps have left."""
        self.begin_values()
        for s in range(4):
            rows = self.values(s)
            if "sums" in self.without:
                self.keep([word for row in rows for word in row])
            else:
                self.add_products(s, rows)
            self.next_values(s)
        self.flip("pr")

    def begin_values(self):
        """p2: whether a tile follows, to which vptr is moved on."""
        self.op("setp.gt.u32 p2, valueleft, 1;", f"mad.wide.u32 vptr, stride, {self.dim}, vptr;")
        self.op("sub.u32 valueleft, valueleft, 1;")

    def values(self, s):
        """A lane's words of 16 slots: of slots t, t + 8, t + 4 and t + 12."""
        return [self.value(s, r) for r in range(4)]

    def next_values(self, s):
        """Asks for the same slots of the next tile, of which p2 says whether there is one."""
        if "loads" not in self.without:
            self.load_values([s], "@p2 ")
            self.fence()

    def add_products(self, s, rows):
        """Of 16 slots, whose values these are."""
        b = [self.reg("b32", f"p_{n}_0", f"p_{n}_1") for n in range(self.n)]
        for n in range(self.n):
            self.op(f"ld.shared.v2.b32 {{{', '.join(b[n])}}}, [pr+{(s * self.n + n) * 256}];")
        a = self.reg("b32", "va_0", "va_1", "va_2", "va_3")
        for i in range(2 * self.x):
            for c in range(4):
                byte = 2 * (i % 2) + c % 2
                first, second = rows[c // 2 * 2][i // 2], rows[c // 2 * 2 + 1][i // 2]
                self.pairs(a[c], first, second, hex((4 + byte) << 8 | byte))
            for n in range(self.n):
                self.multiply(self.acc(i, n), a, b[n], self.acc(i, n))

    def stamp(self, name):
        """Leaves the time, where that is asked for."""
        if self.stamps:
            self.op(f"mov.u32 now, {'%globaltimer_lo' if name in STAMPS else '%clock'};")
            self.op(f"@stamping st.volatile.global.b32 [stampat+{4 * (STAMPS + TURN_STAMPS).index(name)}], now;")

    def keep(self, words):
        """Has words be loaded with which nothing else is done."""
        self.op(*(f"xor.b32 sink, sink, {word};" for word in words))
