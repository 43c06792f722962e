"""PTX of decode attention's parts over int8 caches: what one block of four warps does for one part and head.

A tile is 64 slots. Its scores, slots by columns (a column is a row and query head), are split over the warps by slots,
its sums, channels by columns, by channels. Codes go from memory to the registers of the lane that multiplies them, one
tile ahead, since any order of channels or slots will do for a sum if both factors have it; or, staged, through rings of
tiles in shared memory (kernels/_attention_ptx_ring.py). kernels/_attention_ptx_tile.py has the three steps of a tile:
scores, weights and sums.

Between two barriers a warp works on three tiles, sums of one, weights of the next and scores of the one after, so that
there is one barrier a tile and no step waits for the one before. Where a part lies is found before the kernels before
are waited for. Queries are asked for first, since most is to be done with them, then the first keys; staged, everything
else after the queries have come, or it would keep other blocks' first keys waiting. From a part's tile to its next is a
`stride` of slots.

Plain Python; kernels/_attention_block_kernel.py has Triton place the text in a kernel.
"""

import struct

from . import attention_control as control
from ._attention_ptx_ring import ALIGN, Ring
from ._attention_ptx_tile import WARPS, Tile

POINTERS = ("pk", "pv", "pks", "pvs", "pq", "ppeak", "ptotal", "pacc", "pcounter", "pcontrol")
NUMBERS = (
    "start", "left", "stride", "length", "rows", "end", "first", "columns", "take", "group", "inverse", "rowbytes",
)  # fmt: skip
LEAST = -(2.0**100)  # where a maximum starts
CONSTRAINTS = "=&r," + "l," * len(POINTERS) + ",".join("r" * len(NUMBERS))


def extent(pointer: str, cache: str) -> tuple[str, str]:
    """Texts that ask for control and that have length, live rows and the end of what any row sees of it.

    These are then in registers now_length, now_rows and now_end. One load of a warp for all of the words; with `cache`
    "cg" it passes by the L1.
    """
    asked = f"""
        .reg .b32 now_length, now_rows, now_end, word, number;
        .reg .b64 where;
        .reg .pred there;
        mov.u32 number, %laneid;
        mul.wide.u32 where, number, 4; add.u64 where, where, {pointer};
        setp.lt.u32 there, number, {control.CONTROL}; mov.b32 word, 0;
        @there ld.global.{cache}.b32 word, [where];
        """
    return (
        asked,
        f"""
        shfl.sync.idx.b32 now_length, word, {control.LENGTH}, 31, 0xffffffff;
        shfl.sync.idx.b32 now_rows, word, {control.ROWS}, 31, 0xffffffff;
        min.s32 now_rows, now_rows, 8; max.s32 now_rows, now_rows, 0;
        sub.u32 number, number, {control.DEPTHS}; setp.lt.u32 there, number, now_rows;
        add.u32 word, word, now_length; selp.b32 word, word, 0, there;
        redux.sync.max.s32 now_end, word, 0xffffffff;
        """,
    )


def program(
    dim: int, groups: int, bf16: bool, dependent: bool, staged: bool, *, overlapped=True, without=(), stamps=False
) -> str:
    """The text for heads of `dim` (128 or 256), 8 `groups` columns and queries in bf16 or fp16.

    dependent   waits for the kernels before; if control is another than the operands say it does nothing but return -1
    staged      as kernels/_attention_ptx_ring.py has it (compute capability 9.0 alone); the bits are the same
    overlapped  three tiles between two barriers; else one step, which the staged form does not have
    stamps      for measuring: leaves the time at each of STAMPS in words 16 block + 16 .. behind the counter
    without     steps left out, for measuring: "loads" after the first tile's, "scores", "weights", "sums"
    """
    writer = (_StagedBlock if staged else _Block)(dim, groups, bf16, dependent, tuple(without), stamps)
    writer.prologue()
    (writer.overlapped if overlapped else writer.in_turn)()
    writer.epilogue()
    return writer.text()


def shared_bytes(dim: int, groups: int) -> int:
    """What the staged form of a text uses of the shared memory that is reserved at launch."""
    return _StagedBlock(dim, groups, True, True, (), False).bytes + ALIGN


class _Block(Tile):
    def operands(self):
        """Registers, and where a lane's keys, values and scales lie."""
        self.reg("b64", "kptr", "vptr", "ksptr", "vsptr", "at")
        self.reg("b32", "tid", "warp", "lane", "g", "t", "u", "v", "w", "base", "mask", "bias", "zero", "other")
        self.reg("b32", "qa", "pw", "pr", "mw", "mr", "sa", "pw2", "pr2", "mw2", "mr2", "slot", "keyleft", "valueleft")
        self.reg("b32", "scaleslot", "tileend", "columnlane")
        self.reg("pred", "p", "r", "p0", "p1", "p2", "live", "never", "steady")
        self.reg("f32", "fzero", "peak", "shrink")
        self.op("mov.f32 fzero, 0f00000000;")
        self.reg("b32", "next", "sink")
        self.op("mov.b32 sink, 0;")
        for i, name in enumerate(POINTERS + NUMBERS, 1):
            kind = self.registers[name] = "b64" if name in POINTERS else "b32"
            self.op(f"mov.{kind} {name}, ${i};")
        self.op(
            "mov.u32 tid, %tid.x;", "and.b32 lane, tid, 31;", "shr.u32 warp, tid, 5;",
            "shr.u32 g, lane, 2;", "and.b32 t, lane, 3;",
            "mov.b32 mask, 0x00ff00ff;", "mov.b32 bias, 0x64806480;", "mov.b32 zero, 0;", "mov.b32 other, 0;",
            "mov.b32 keyleft, left;", "mov.b32 valueleft, left;", f"add.u32 tileend, start, {control.TILE};",
            # keys: byte (16 w + g) D + 16 t; values: t D + w D / 4 + g D / 32
            "mad.lo.u32 u, warp, 16, g;", f"mul.lo.u32 v, u, {self.dim};", "mad.lo.u32 v, t, 16, v;",
            "cvt.u64.u32 at, v;", "add.u64 kptr, pk, at;",
            "add.u32 slot, start, u;", "mul.wide.u32 at, u, 4;", "add.u64 ksptr, pks, at;", "add.u64 vsptr, pvs, at;",
            f"mul.lo.u32 v, t, {self.dim};", f"mad.lo.u32 v, warp, {self.dim // 4}, v;",
            f"mad.lo.u32 v, g, {self.dim // 32}, v;", "cvt.u64.u32 at, v;", "add.u64 vptr, pv, at;",
            "mov.b32 scaleslot, slot;", "setp.lt.s32 never, length, 0;",
        )  # fmt: skip

    def prologue(self):
        """Asks for the first tiles, puts queries and what columns see into shared memory."""
        self.operands()
        self.find_shared()
        self.addresses()
        if self.stamps:
            self.reg("b32", "now")
            self.reg("b64", "stampat")
            self.reg("pred", "stamping")
            self.op("setp.eq.u32 stamping, tid, 0;", "mov.u32 u, %ctaid.x;", "mul.wide.u32 stampat, u, 64;")
            self.op("add.u64 stampat, stampat, pcounter;", "add.u64 stampat, stampat, 64;")
        self.stamp("ready")
        if self.dependent:
            self.op("griddepcontrol.wait;")
        self.stamp("waited")
        self.load_queries()
        self.first_loads()
        self.stamp("loads")
        self.op("bar.sync 0;")  # so that no load is put off until after something else has come
        asked, found = extent("pcontrol", "ca")
        if self.dependent:
            self.op(asked)
        self.store_queries()
        self.later_loads()
        if self.dependent:
            self.op(found)
        for register in self.by_column("total"):
            self.op(f"mov.f32 {register}, 0f00000000;")
        self.op(f"mov.f32 peak, {_float(LEAST)};")  # finite: a difference of two infinities is none
        for i in range(2 * self.x):
            for n in range(self.n):
                self.op(*(f"mov.f32 {register}, 0f00000000;" for register in self.acc(i, n)))
        self.reg("b32", "taken")
        self.op("mov.b32 taken, 0;")
        if self.dependent:  # No branch: loads that one way does not want would be put off until after it.
            self.op(
                "setp.ne.b32 p, length, now_length;", "setp.ne.or.b32 p, rows, now_rows, p;",
                "setp.ne.or.b32 p, end, now_end, p;", "selp.b32 taken, 0xffffffff, 0, p;",
                "selp.b32 take, 0, take, p;", "selp.b32 columns, 0, columns, p;",
            )  # fmt: skip
        self.op("setp.eq.u32 p, tid, 0;", "setp.ne.and.u32 p, take, 0, p;")
        self.op("@p atom.relaxed.gpu.global.add.u32 taken, [pcounter], 1;")
        self.arrived(2)
        self.op("bar.sync 0;")
        for n in range(self.n):
            steps = ", ".join(self.by_column("step")[2 * n :][:2])
            self.op(f"ld.shared.v2.f32 {{{steps}}}, [sa+{self.step_at - self.seen_at + 32 * n}];")
        self.stamp("queries")

    def addresses(self):
        """Of a lane's words in shared memory, and what turns an address into the one of the other buffer."""
        self.op(
            f"add.u32 qa, base, {self.q_at};", "mad.lo.u32 qa, lane, 16, qa;",
            # weights: word (w N + n) 64 + (2 t + e) 8 + 2 (g mod 4) + g / 4 written, (s N + n) 64 + 2 lane read
            "and.b32 u, g, 3;", "shr.u32 v, g, 2;", "mad.lo.u32 u, u, 2, v;", "mad.lo.u32 u, t, 16, u;",
            f"mad.lo.u32 u, warp, {64 * self.n}, u;", "mad.lo.u32 pw, u, 4, base;",
            f"add.u32 pw, pw, {self.p_at};", "mad.lo.u32 pr, lane, 8, base;", f"add.u32 pr, pr, {self.p_at};",
            # maxima: word 4 column + warp; after the reduction lane g holds n = 2 (g % 2) + g / 2 % 2, e = g / 4
            "and.b32 u, g, 1;", "shr.u32 v, g, 1;", "and.b32 v, v, 1;", "mad.lo.u32 u, u, 2, v;", "shr.u32 v, g, 2;",
            "mad.lo.u32 v, t, 2, v;", "mad.lo.u32 u, u, 8, v;", f"setp.lt.u32 live, u, {8 * self.n};",
            "mad.lo.u32 u, u, 4, warp;", "mad.lo.u32 mw, u, 4, base;", f"add.u32 mw, mw, {self.m_at};",
            "mad.lo.u32 mr, lane, 16, base;", f"add.u32 mr, mr, {self.m_at};",
            "mul.lo.u32 columnlane, t, 2;",
            "mad.lo.u32 sa, t, 8, base;", f"add.u32 sa, sa, {self.seen_at};",
        )  # fmt: skip
        for name, size in (("pw", 1024 * self.n), ("pr", 1024 * self.n), ("mw", 512), ("mr", 512)):
            self.op(f"mad.lo.u32 {name}2, {name}, 2, {size};")

    def load_queries(self):
        """Warp n asks for the queries of columns 8 n .. + 7, thread c for what column c sees."""
        words = self.reg("b32", *(f"q_{i}" for i in range(8 * self.j)))
        self.reg("b32", "seenby", "seenat", "seenlength")
        self.op(
            "mul.lo.u32 u, tid, inverse;", "shr.u32 u, u, 16;", "add.u32 u, u, first;", "mul.wide.u32 at, u, 4;",
            "add.u64 at, pcontrol, at;", "setp.lt.u32 p, tid, columns;", "setp.lt.u32 r, tid, 32;",
            "mov.b32 seenby, 0;", f"@p ld.global.b32 seenby, [at+{4 * control.DEPTHS}];",
            "selp.b32 seenlength, length, 0, p;", "mad.lo.u32 seenat, tid, 4, base;",
            "mad.lo.u32 u, warp, 8, g;", "setp.lt.u32 p, u, columns;", "mul.lo.u32 v, u, inverse;", "shr.u32 v, v, 16;",
            "mul.lo.u32 w, v, group;", "sub.u32 w, u, w;", "mul.lo.u32 v, v, rowbytes;",
            f"mad.lo.u32 v, w, {2 * self.dim}, v;", "mad.lo.u32 v, t, 32, v;", "cvt.u64.u32 at, v;",
            "add.u64 at, pq, at;",
        )  # fmt: skip
        if self.n < WARPS:
            self.op(f"setp.lt.and.u32 p, warp, {self.n}, p;")
        for j in range(self.j):
            for half in range(2):
                four = words[8 * j + 4 * half :][:4]
                self.op(*(f"mov.b32 {word}, 0;" for word in four))
                self.op(f"@p ld.global.v4.b32 {{{', '.join(four)}}}, [at+{128 * j + 16 * half}];")

    def store_queries(self):
        """Puts the queries' digits into shared memory in the order of the keys, their steps, and what columns see.

        A query is its step, the largest |q| / 32639, times 256 high + low, both int8.
        """
        done = self.label()
        words = self.reg("b32", *(f"q_{i}" for i in range(8 * self.j)))
        self.op("add.u32 seenby, seenby, seenlength;", f"@r st.shared.b32 [seenat+{self.seen_at}], seenby;")
        if self.n < WARPS:
            self.op(f"setp.ge.u32 r, warp, {self.n};", f"@r bra {done};")
        self.query_steps(words)
        self.find_digits()
        for j in range(self.j):
            digits = [self.reg("b32", *(f"{name}digits_{v}" for v in range(4))) for name in ("high", "low")]
            for v in range(4):
                self.digits(words[8 * j + 2 * v :][:2], digits[0][v], digits[1][v])
            for digit, four in enumerate(digits):
                self.op(f"st.shared.v4.b32 [u+{self.digits_at(digit, j)}], {{{', '.join(four)}}};")
        self.op(f"{done}:")

    def find_digits(self):
        """Where a lane's digits of 64 j + 16 t .. + 15 go, into u, to which `digits_at` is added."""
        self.op(f"mad.lo.u32 u, warp, {512 * self.j}, qa;")

    def digits_at(self, digit, j):
        return (digit * self.n * self.j + j) * 512

    def query_steps(self, words):
        """`inverse_step` of a lane's column; the step, with what makes bits of a score, into shared memory."""
        kind = "bf16x2" if self.bf16 else "f16x2"
        sizes = [self.reg("b32", f"size_{i}") for i in range(len(words))]
        for size, word in zip(sizes, words, strict=True):
            self.op(f"abs.{kind} {size}, {word};")
        while len(sizes) > 1:
            half = len(sizes) // 2
            self.op(*(f"max.NaN.{kind} {sizes[i]}, {sizes[i]}, {sizes[i + half]};" for i in range(half)))
            sizes = sizes[:half]
        self.reg("f32", "largest", "inverse_step", "other_half")
        self.halves(sizes[0], "largest", "other_half")
        self.op("max.NaN.f32 largest, largest, other_half;")
        for distance in (1, 2):
            self.op(f"shfl.sync.bfly.b32 other_half, largest, {distance}, 31, 0xffffffff;")
            self.op("max.NaN.f32 largest, largest, other_half;")
        self.op(f"max.NaN.f32 largest, largest, {_float(2.0**-100)};", "rcp.approx.ftz.f32 inverse_step, largest;")
        self.op(f"mul.f32 inverse_step, inverse_step, {_float(32639.0)};")
        self.op(f"mul.f32 largest, largest, {_float(1.4426950408889634 / self.dim**0.5 / 32639)};")
        self.op("mad.lo.u32 u, warp, 8, g;", "mad.lo.u32 u, u, 4, base;", "setp.eq.u32 p, t, 0;")
        self.op(f"@p st.shared.f32 [u+{self.step_at}], largest;")

    def halves(self, word, low, high):
        """The two numbers of a word of queries as floats."""
        if self.bf16:
            self.op(f"shl.b32 v, {word}, 16;", f"mov.b32 {low}, v;")
            self.op(f"and.b32 v, {word}, 0xffff0000;", f"mov.b32 {high}, v;")
        else:
            self.reg("b16", "half_low", "half_high")
            self.op(f"mov.b32 {{half_low, half_high}}, {word};")
            self.op(f"cvt.f32.f16 {low}, half_low;", f"cvt.f32.f16 {high}, half_high;")

    def digits(self, pair, high, low):
        """Four queries' digits, a byte each. A number added to 1.5 2^23 is rounded; its low bits are an integer's."""
        numbers = self.reg("f32", *(f"h{i}" for i in range(4)))
        bits = self.reg("b32", *(f"bits_{i}" for i in range(4)))
        for i, word in enumerate(pair):
            self.halves(word, *numbers[2 * i :][:2])
        for number, word in zip(numbers, bits, strict=True):
            self.op(f"fma.rn.f32 {number}, {number}, inverse_step, {_float(12582912.0)};", f"mov.b32 {word}, {number};")
        for target, byte in ((low, 0), (high, 1)):
            if byte:
                self.op(*(f"add.u32 {word}, {word}, 128;" for word in bits))
            self.op(f"prmt.b32 v, {bits[0]}, {bits[1]}, {hex((4 + byte) << 4 | byte)};")
            self.op(f"prmt.b32 w, {bits[2]}, {bits[3]}, {hex((4 + byte) << 4 | byte)};")
            self.op(f"prmt.b32 {target}, v, w, 0x5410;")

    def in_turn(self):
        again, not_last = self.label(), self.label()
        self.op(f"{again}:")
        self.again = again
        self.scores()
        self.op("bar.sync 0;")
        self.weights()
        self.shrink()
        self.op("setp.gt.u32 r, left, 1;", f"@r bra {not_last};")
        self.leave_totals()
        self.op(f"{not_last}:", "bar.sync 0;")
        self.sums()
        self.again = None
        self.op("sub.u32 left, left, 1;", "setp.gt.u32 r, left, 0;", f"@r bra {again};")

    def overlapped(self):
        last, again, end = self.label(), self.label(), self.label()
        self.scores()
        self.arrived(1)
        self.op("bar.sync 0;")
        self.stamp("scores")
        self.weights()
        self.op("setp.eq.u32 r, left, 1;", f"@r bra {last};")
        self.request()
        self.scores()
        self.arrived(1)
        self.op("bar.sync 0;", "setp.eq.u32 r, left, 2;", f"@r bra {end};", f"{again}:")
        self.again = again
        self.stamp("begun")
        self.request()
        self.stamp("requested")
        self.sums()
        self.stamp("summed")
        if self.asks_early:
            self.ask_scores()
        self.stamp("asked")
        self.weights()
        self.shrink()
        self.stamp("weighed")
        if not self.asks_early:
            self.ask_scores()
        self.take_scores()
        self.stamp("taken")
        self.arrived(1)
        self.again = None
        self.op("bar.sync 0;")
        self.stamp("met")
        self.op("sub.u32 left, left, 1;", "setp.gt.u32 r, left, 2;", f"@r bra {again};", f"{end}:")
        self.sums()
        self.weights()
        self.shrink()
        self.op(f"{last}:")
        self.leave_totals()
        self.arrived(0)
        self.op("bar.sync 0;")
        self.stamp("weights")
        self.sums()
        self.stamp("sums")

    def leave_totals(self):
        """A warp's sums of weights and the answer of the counter, for after the last barrier."""
        total = self.across(self.by_column("total"), "sum", False)
        self.op("sub.u32 u, mw, base;", f"mov.b32 v, {self.m_at + 512};", "setp.ge.u32 p, u, v;")
        self.op("@p sub.u32 u, u, 512;", "add.u32 u, u, base;")
        self.op(f"@live st.shared.f32 [u+{self.total_at - self.m_at}], {total};")
        self.op("setp.eq.u32 p, tid, 0;", f"@p st.shared.b32 [base+{self.next_at}], taken;")

    def epilogue(self):
        """Stores the part. In its row of sums, the words that one store of a warp writes lie beside each other."""
        self.op(f"ld.shared.b32 next, [base+{self.next_at}];")
        maxima = self.reg("f32", "m_0", "m_1", "m_2", "m_3")
        self.op(
            "setp.lt.u32 p, tid, columns;", "mad.lo.u32 u, tid, 16, base;",
            f"@p ld.shared.v4.f32 {{{', '.join(maxima)}}}, [u+{self.total_at}];",
            "add.f32 m_0, m_0, m_1;", "add.f32 m_2, m_2, m_3;", "add.f32 m_0, m_0, m_2;",
            "mul.wide.u32 at, tid, 4;", "add.u64 at, ptotal, at;", "@p st.global.f32 [at], m_0;",
            "mul.wide.u32 at, lane, 4;", "add.u64 at, ppeak, at;", "setp.eq.u32 r, warp, 1;",
            "setp.lt.and.u32 r, lane, columns, r;",
            f"setp.eq.f32 p, peak, {_float(LEAST)};", "selp.f32 peak, 0fFF800000, peak, p;",
            "@r st.global.f32 [at], peak;",
        )  # fmt: skip
        # Word x of lane g of warp w: (w X + x) 32 + 4 g.
        self.op(f"mul.lo.u32 u, t, {8 * self.dim};", f"mad.lo.u32 u, warp, {self.dim}, u;", "mad.lo.u32 u, g, 16, u;")
        self.op("cvt.u64.u32 at, u;", "add.u64 at, pacc, at;")
        for n in range(self.n):
            for e in range(2):
                column = 8 * n + e
                self.op(f"mad.lo.u32 u, t, 2, {column};", "setp.lt.u32 p, u, columns;")
                for x in range(self.x):
                    four = [self.acc(2 * x + c // 2, n)[2 * (c % 2) + e] for c in range(4)]
                    offset = column * 4 * self.dim + 128 * x
                    self.op(f"@p st.global.v4.f32 [at+{offset}], {{{', '.join(four)}}};")
        if self.without:
            self.op("setp.eq.u32 p, sink, 0x5bd1e995;", "@p st.global.b32 [pcounter], sink;")
        self.stamp("stored")
        self.op("mov.b32 $0, next;")


class _StagedBlock(Ring, _Block):
    """With keys and values on their way to shared memory."""


def _float(number):
    return "0f" + struct.pack(">f", number).hex().upper()
