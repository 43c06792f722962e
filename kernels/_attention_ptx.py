"""PTX of decode attention's parts over int8 caches: what one block of four warps does for one part and head.

A tile is 64 slots. Its scores, slots by columns (a column is a row and query head), are split over the warps by slots,
its sums, channels by columns, by channels. Codes go from memory to the registers of the lane that multiplies them, one
tile ahead, and never through shared memory, since any order of channels or slots will do for a sum if both factors have
it. Three steps a tile:

    scores   of a warp's 16 slots, and their maxima, which the warps then exchange
    weights  under the running maximum, rounded to fp16, which the warps then exchange
    sums     of a warp's quarter of the channels

Between two barriers a warp works on three tiles, sums of one, weights of the next and scores of the one after, so that
there is one barrier a tile and no step waits for the one before. Lane 4 g + t holds, of a product of 16 x 8 outputs, rows
g and g + 8 and columns 2 t and 2 t + 1. For lane and warp w:

    keys     slots 16 w + g and + 8, channels 64 j + 16 t .. + 15; bytes 0, 2 and bytes 1, 3 of a word are pairs of a product
    weights  slots 16 s + g and + 8 are a pair; lane t sums over the pairs 2 t and 2 t + 1 of every 16 slots
    sums     channels (D / 4) w + (D / 32) g + 4 x + c of its word x are row g (c even) or g + 8 of product 2 x + c / 2

Plain Python; kernels/_decode_attention_kernels.py has Triton place the text in a kernel.
"""

import struct

from . import attention_control as control

WARPS, TILE = 4, 64
POINTERS = ("pk", "pv", "pks", "pvs", "pq", "ppeak", "ptotal", "pacc", "pcounter", "pcontrol")
NUMBERS = ("start", "stop", "length", "rows", "end", "first", "columns", "take", "group", "inverse", "rowbytes")
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
    return asked, f"""
        shfl.sync.idx.b32 now_length, word, {control.LENGTH}, 31, 0xffffffff;
        shfl.sync.idx.b32 now_rows, word, {control.ROWS}, 31, 0xffffffff;
        min.s32 now_rows, now_rows, 8; max.s32 now_rows, now_rows, 0;
        sub.u32 number, number, {control.DEPTHS}; setp.lt.u32 there, number, now_rows;
        add.u32 word, word, now_length; selp.b32 word, word, 0, there;
        redux.sync.max.s32 now_end, word, 0xffffffff;
        """


def program(
    dim: int, groups: int, bf16: bool, dependent: bool, *, overlapped: bool = True, without: tuple[str, ...] = ()
) -> str:
    """The text for heads of `dim` (128 or 256), 8 `groups` columns and queries in bf16 or fp16.

    dependent   waits for the kernels before; if control is another than the operands say it does nothing but return -1
    overlapped  three tiles between two barriers; else one step
    without     steps left out, for measuring: "loads" after the first tile's, "scores", "weights", "sums"
    """
    writer = _Writer(dim, groups, bf16, dependent, without)
    writer.prologue()
    (writer.overlapped if overlapped else writer.in_turn)()
    writer.epilogue()
    return writer.text()


class _Writer:
    def __init__(self, dim, groups, bf16, dependent, without):
        self.dim, self.n, self.bf16, self.dependent, self.without = dim, groups, bf16, dependent, without
        self.j, self.x = dim // 64, dim // 128
        self.lines, self.registers, self.labels = [], {}, 0
        self.again = None
        self.p_at = groups * dim * 16
        self.m_at = self.p_at + 2 * groups * 1024
        self.total_at = self.m_at + 1024
        self.seen_at = self.total_at + 512
        self.next_at = self.seen_at + 128
        self.bytes = self.next_at + 16

    # Text

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
        declared = [f".shared .align 16 .b8 shared_bytes[{self.bytes}];"]
        for kind in dict.fromkeys(self.registers.values()):
            declared.append(f".reg .{kind} " + ", ".join(n for n, k in self.registers.items() if k == kind) + ";")
        return "{\n" + "\n".join(declared + self.lines) + "\n}\n"

    # Names of registers

    def acc(self, i, n):
        return self.reg("f32", *(f"acc_{i}_{n}_{c}" for c in range(4)))

    def s(self, n):
        return self.reg("f32", *(f"s_{n}_{c}" for c in range(4)))

    def key(self, half, j):
        return self.reg("b32", *(f"k_{half}_{j}_{w}" for w in range(4)))

    def value(self, s, r):
        return [self.reg("b32", f"v_{s}_{r}_{x}") for x in range(self.x)]

    def by_column(self, name):
        """A float for each of a lane's columns."""
        return [self.reg("f32", f"{name}_{n}_{e}") for n in range(self.n) for e in range(2)]

    # Steps

    def prologue(self):
        """Asks for the first tile, puts queries and what columns see into shared memory."""
        self.reg("b64", "kptr", "vptr", "ksptr", "vsptr", "at")
        self.reg("b32", "tid", "warp", "lane", "g", "t", "u", "v", "w", "base", "mask", "bias", "zero", "other")
        self.reg("b32", "qa", "pw", "pr", "mw", "mr", "sa", "pw2", "pr2", "mw2", "mr2", "tile", "left", "slot", "keyleft")
        self.reg("b32", "valueleft", "scaleslot", "tileend")
        self.reg("pred", "p", "r", "p0", "p1", "p2", "live", "never")
        self.reg("f32", "fzero")
        self.op("mov.f32 fzero, 0f00000000;")
        self.reg("b32", "next", "sink")
        self.op("mov.b32 sink, 0;")
        for i, name in enumerate(POINTERS + NUMBERS, 1):
            kind = self.registers[name] = "b64" if name in POINTERS else "b32"
            self.op(f"mov.{kind} {name}, ${i};")
        self.op(
            "mov.u32 tid, %tid.x;", "and.b32 lane, tid, 31;", "shr.u32 warp, tid, 5;",
            "shr.u32 g, lane, 2;", "and.b32 t, lane, 3;", "mov.u32 base, shared_bytes;",
            "mov.b32 mask, 0x00ff00ff;", "mov.b32 bias, 0x64806480;", "mov.b32 zero, 0;", "mov.b32 other, 0;",
            "sub.u32 left, stop, start;", "add.u32 left, left, 63;", "shr.u32 left, left, 6;",
            "mov.b32 keyleft, left;", "mov.b32 valueleft, left;", "mov.b32 tile, start;",
            # keys: byte (16 w + g) D + 16 t; values: 2 t D + w D / 4 + g D / 32
            "mad.lo.u32 u, warp, 16, g;", f"mul.lo.u32 v, u, {self.dim};", "mad.lo.u32 v, t, 16, v;",
            "cvt.u64.u32 at, v;", "add.u64 kptr, pk, at;",
            "add.u32 slot, start, u;", "mul.wide.u32 at, u, 4;", "add.u64 ksptr, pks, at;", "add.u64 vsptr, pvs, at;",
            f"mul.lo.u32 v, t, {2 * self.dim};", f"mad.lo.u32 v, warp, {self.dim // 4}, v;",
            f"mad.lo.u32 v, g, {self.dim // 32}, v;", "cvt.u64.u32 at, v;", "add.u64 vptr, pv, at;",
            "mov.b32 scaleslot, slot;", "setp.lt.s32 never, length, 0;",
        )  # fmt: skip
        self.addresses()
        if self.dependent:
            self.op("griddepcontrol.wait;")
        self.load_keys(range(self.j))
        self.load_scales()
        self.load_values(range(4))
        self.op("bar.sync 0;")  # so that no load is put off until after something else has come
        asked, found = extent("pcontrol", "ca")
        if self.dependent:
            self.op(asked)
        self.load_queries()
        self.store_queries()
        if self.dependent:
            self.op(found)
        for register in self.by_column("total"):
            self.op(f"mov.f32 {register}, 0f00000000;")
        for register in self.by_column("peak"):
            self.op(f"mov.f32 {register}, 0fFF800000;")
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
        self.op("@p atom.relaxed.gpu.global.add.u32 taken, [pcounter], 1;", "bar.sync 0;")

    def addresses(self):
        """Of a lane's words in shared memory, and what turns an address into the one of the other buffer."""
        self.op(
            f"mad.lo.u32 qa, lane, 16, base;",
            # weights: word (w N + n) 64 + (2 t + e) 8 + g written, (s N + n) 64 + 2 lane read
            "mad.lo.u32 u, t, 16, g;", f"mad.lo.u32 u, warp, {64 * self.n}, u;", "mad.lo.u32 pw, u, 4, base;",
            f"add.u32 pw, pw, {self.p_at};", "mad.lo.u32 pr, lane, 8, base;", f"add.u32 pr, pr, {self.p_at};",
            # maxima: word 4 column + warp; after the reduction lane g holds n = 2 (g % 2) + g / 2 % 2, e = g / 4
            "and.b32 u, g, 1;", "shr.u32 v, g, 1;", "and.b32 v, v, 1;", "mad.lo.u32 u, u, 2, v;", "shr.u32 v, g, 2;",
            "mad.lo.u32 v, t, 2, v;", "mad.lo.u32 u, u, 8, v;", f"setp.lt.u32 live, u, {8 * self.n};",
            "mad.lo.u32 u, u, 4, warp;", "mad.lo.u32 mw, u, 4, base;", f"add.u32 mw, mw, {self.m_at};",
            "mad.lo.u32 mr, t, 32, base;", f"add.u32 mr, mr, {self.m_at};",
            "mad.lo.u32 sa, t, 8, base;", f"add.u32 sa, sa, {self.seen_at};",
        )  # fmt: skip
        for name, size in (("pw", 1024 * self.n), ("pr", 1024 * self.n), ("mw", 512), ("mr", 512)):
            self.op(f"mad.lo.u32 {name}2, {name}, 2, {size};")

    def flip(self, name):
        self.op(f"sub.u32 {name}, {name}2, {name};")

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
        """Puts the queries into shared memory in fp16 and in the order of the keys, and what columns see."""
        done = self.label()
        words = self.reg("b32", *(f"q_{i}" for i in range(8 * self.j)))
        halves = self.reg("f32", "h0", "h1", "h2", "h3")
        pairs = self.reg("b32", "b0", "b1", "b2", "b3")
        self.op("add.u32 seenby, seenby, seenlength;", f"@r st.shared.b32 [seenat+{self.seen_at}], seenby;")
        self.op(f"mad.lo.u32 u, warp, {1024 * self.j}, qa;")
        if self.n < WARPS:
            self.op(f"setp.ge.u32 r, warp, {self.n};", f"@r bra {done};")
        for j in range(self.j):
            for half in range(2):
                for pair in range(2):
                    first, second = words[8 * j + 4 * half + 2 * pair :][:2]
                    if self.bf16:
                        for word, (low, high) in ((first, halves[:2]), (second, halves[2:])):
                            self.op(f"shl.b32 v, {word}, 16;", f"mov.b32 {low}, v;")
                            self.op(f"and.b32 v, {word}, 0xffff0000;", f"mov.b32 {high}, v;")
                        self.op(f"cvt.rn.f16x2.f32 {pairs[2 * pair]}, {halves[2]}, {halves[0]};")
                        self.op(f"cvt.rn.f16x2.f32 {pairs[2 * pair + 1]}, {halves[3]}, {halves[1]};")
                    else:
                        self.op(f"prmt.b32 {pairs[2 * pair]}, {first}, {second}, 0x5410;")
                        self.op(f"prmt.b32 {pairs[2 * pair + 1]}, {first}, {second}, 0x7632;")
                self.op(f"st.shared.v4.b32 [u+{(2 * j + half) * 512}], {{{', '.join(pairs)}}};")
        self.op(f"{done}:")

    def load_keys(self, columns, guard=""):
        for j in columns:
            for half in range(2):
                at = half * 8 * self.dim + j * 64
                self.op(f"{guard}ld.global.L1::no_allocate.v4.b32 {{{', '.join(self.key(half, j))}}}, [kptr+{at}];")

    def load_values(self, steps, guard=""):
        for s in steps:
            for r, row in enumerate((0, 8, 1, 9)):
                words, at = self.value(s, r), (16 * s + row) * self.dim
                kind = f"v{self.x}.b32" if self.x > 1 else "b32"
                self.op(f"{guard}ld.global.L1::no_allocate.{kind} {{{', '.join(words)}}}, [vptr+{at}];")

    def load_scales(self):
        """Of the slots 16 w + g and + 8 of the tile at `scaleslot`; zeros from `stop` on."""
        scales = self.reg("f32", "ks_0", "ks_1", "vs_0", "vs_1")
        self.op("setp.lt.u32 p0, scaleslot, stop;", "add.u32 u, scaleslot, 8;", "setp.lt.u32 p1, u, stop;")
        self.op(*(f"mov.f32 {scale}, 0f00000000;" for scale in scales))
        for i, (scale, pointer) in enumerate(zip(scales, ("ksptr", "ksptr", "vsptr", "vsptr"), strict=True)):
            self.op(f"@p{i % 2} ld.global.b32 {scale}, [{pointer}+{32 * (i % 2)}];")
        self.op("add.u32 scaleslot, scaleslot, 64;", "add.u64 ksptr, ksptr, 256;", "add.u64 vsptr, vsptr, 256;")

    def pairs(self, target, first, second, selector):
        """Two codes as a pair in fp16, exactly: the bytes code + 128 of 1024 + code + 128, less 1152."""
        if second is None:
            self.op(f"mov.b32 {target}, {first};" if selector == 0 else f"shr.u32 {target}, {first}, 8;")
        else:
            self.op(f"prmt.b32 {target}, {first}, {second}, {selector};")
        self.op(f"lop3.b32 {target}, {target}, mask, bias, 0x6a;", f"sub.rn.f16x2 {target}, {target}, bias;")

    def multiply(self, d, a, b, c):
        names = (", ".join(x) for x in (d, a, b, c))
        self.op("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " + ", ".join(f"{{{x}}}" for x in names) + ";")

    def across(self, values, name, largest):
        """Reduces a lane's columns over the eight lanes g; a lane ends with one column, which `mw` says: [1] register."""
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
        """Of the next tile, in units of bits and with what their weights' exponents add; and a warp's maxima."""
        pair = self.reg("b32", "a0", "a1", "a2", "a3")
        self.op("setp.gt.u32 p2, keyleft, 1;", f"add.u64 kptr, kptr, {TILE * self.dim};")
        for j in range(self.j):
            keys = [self.key(half, j) for half in range(2)]
            if "scores" in self.without:
                self.keep(keys[0] + keys[1])
                self.op(*(f"mov.f32 {register}, fzero;" for n in range(self.n) for register in self.s(n)))
            for word in range(4 if "scores" not in self.without else 0):
                if word % 2 == 0:
                    b = [self.reg("b32", *(f"b_{n}_{i}" for i in range(4))) for n in range(self.n)]
                    for n in range(self.n):
                        at = ((n * self.j + j) * 2 + word // 2) * 512
                        self.op(f"ld.shared.v4.b32 {{{', '.join(b[n])}}}, [qa+{at}];")
                for i in range(4):
                    self.pairs(pair[i], keys[i % 2][word], None, i // 2)
                for n in range(self.n):
                    c = ["fzero"] * 4 if j == word == 0 else self.s(n)
                    self.multiply(self.s(n), pair, b[n][2 * (word % 2) :][:2], c)
            if "loads" not in self.without:
                self.load_keys([j], "@p2 ")
                self.fence()
        self.op("sub.u32 keyleft, keyleft, 1;")
        self.scale()
        tops = [self.reg("f32", f"top_{n}_{e}") for n in range(self.n) for e in range(2)]
        for i, top in enumerate(tops):
            self.op(f"max.f32 {top}, {self.s(i // 2)[i % 2]}, {self.s(i // 2)[2 + i % 2]};")
        self.op(f"@live st.shared.f32 [mw], {self.across(tops, 'top', True)};")
        self.flip("mw")

    def scale(self):
        """Scales the scores and takes out what a column does not see; splits the values' scales."""
        step = self.reg("f32", "step_0", "step_1")
        lift, mantissa, inverse = (self.reg("f32", f"{x}_0", f"{x}_1") for x in ("lift", "mantissa", "inverse"))
        for i in range(2):
            self.op(
                f"mul.f32 step_{i}, ks_{i}, {_float(1.4426950408889634 / self.dim**0.5)};",
                f"mov.b32 u, vs_{i};", "max.s32 u, u, 0x21800000;", "shr.s32 v, u, 23;", "min.s32 v, v, 253;",
                "and.b32 u, u, 0x7fffff;", "or.b32 u, u, 0x3f800000;", f"mov.b32 {mantissa[i]}, u;",
                "sub.s32 u, 254, v;", "shl.b32 u, u, 23;", f"mov.b32 {inverse[i]}, u;",
                "sub.s32 v, v, 127;", f"cvt.rn.f32.s32 {lift[i]}, v;",
                f"fma.rn.f32 {lift[i]}, vs_{i}, 0f00000000, {lift[i]};",
            )  # fmt: skip
        self.load_scales()
        for n in range(self.n):
            for c, s in enumerate(self.s(n)):
                self.op(f"fma.rn.f32 {s}, {s}, {step[c // 2]}, {lift[c // 2]};")
        seen, all_seen = self.reg("b32", "seen_0", "seen_1"), self.label()
        self.op("add.u32 tile, tile, 64;", "setp.le.u32 p, tile, length;", "mov.b32 w, slot;", "add.u32 slot, slot, 64;")
        self.op(f"@p bra {all_seen};", "add.u32 v, w, 8;")
        for n in range(self.n):
            self.op(f"ld.shared.v2.b32 {{{', '.join(seen)}}}, [sa+{32 * n}];")
            for c, s in enumerate(self.s(n)):
                self.op(f"setp.lt.u32 p, {'wv'[c // 2]}, {seen[c % 2]};", f"selp.f32 {s}, {s}, 0fFF800000, p;")
        self.op(f"{all_seen}:")

    def weights(self):
        """Of the tile whose maxima all warps have left, in fp16 into shared memory; the running maximum and sum."""
        columns = list(enumerate(zip(self.by_column("peak"), self.by_column("total"), self.by_column("shrink"), strict=True)))
        for some in (columns[: self.n], columns[self.n :]):  # side by side, so that one waits while another works
            steps = [self.weights_of(i, *names) for i, names in some]
            for lines in zip(*steps, strict=True):
                self.op(*lines)
        self.flip("mr")
        self.flip("pw")

    def weights_of(self, i, peak, total, shrink):
        """The steps of one column of a lane."""
        n, e = divmod(i, 2)
        s_low, s_high = self.s(n)[e], self.s(n)[2 + e]
        m = self.reg("f32", *(f"m_{i}_{warp}" for warp in range(WARPS)))
        low, high, floor = self.reg("f32", f"low_{i}", f"high_{i}", f"floor_{i}")
        packed, none = self.reg("b32", f"packed_{i}"), self.reg("pred", f"none_{i}")
        return (
            f"ld.shared.v4.f32 {{{', '.join(m)}}}, [mr+{128 * n + 16 * e}];",
            f"max.f32 {m[0]}, {m[0]}, {m[1]};",
            f"max.f32 {m[2]}, {m[2]}, {m[3]};",
            f"max.f32 {m[0]}, {m[0]}, {m[2]};",
            f"max.f32 {m[0]}, {m[0]}, {peak};",
            f"setp.eq.f32 {none}, {m[0]}, 0fFF800000;",
            f"selp.f32 {floor}, 0f00000000, {m[0]}, {none};",
            f"sub.f32 {low}, {s_low}, {floor};",
            f"sub.f32 {high}, {s_high}, {floor};",
            f"ex2.approx.ftz.f32 {low}, {low};",
            f"ex2.approx.ftz.f32 {high}, {high};",
            f"sub.f32 {shrink}, {peak}, {floor};",
            f"ex2.approx.ftz.f32 {shrink}, {shrink};",
            f"mov.f32 {peak}, {m[0]};",
            f"mul.f32 {total}, {total}, {shrink};",
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
        shrinks = self.by_column("shrink")
        self.op(f"setp.eq.f32 p, {shrinks[0]}, 0f3F800000;")
        self.op(*(f"setp.eq.and.f32 p, {shrink}, 0f3F800000, p;" for shrink in shrinks[1:]))
        self.op("vote.sync.all.pred p, p, 0xffffffff;", f"@p bra {same};")
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
        self.op("setp.gt.u32 p2, valueleft, 1;", f"add.u64 vptr, vptr, {TILE * self.dim};")
        for s in range(4):
            rows = [self.value(s, r) for r in range(4)]
            if "sums" in self.without:
                self.keep([word for row in rows for word in row])
            else:
                self.add_products(s, rows)
            if "loads" not in self.without:
                self.load_values([s], "@p2 ")
                self.fence()
        self.op("sub.u32 valueleft, valueleft, 1;")
        self.flip("pr")

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

    def keep(self, words):
        """Has words be loaded with which nothing else is done."""
        self.op(*(f"xor.b32 sink, sink, {word};" for word in words))

    # The order of steps

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
        self.op("bar.sync 0;")
        self.weights()
        self.op("setp.eq.u32 r, left, 1;", f"@r bra {last};")
        self.scores()
        self.op("bar.sync 0;", "setp.eq.u32 r, left, 2;", f"@r bra {end};", f"{again}:")
        self.again = again
        self.sums()
        self.weights()
        self.shrink()
        self.scores()
        self.again = None
        self.op("bar.sync 0;", "sub.u32 left, left, 1;", "setp.gt.u32 r, left, 2;", f"@r bra {again};", f"{end}:")
        self.sums()
        self.weights()
        self.shrink()
        self.op(f"{last}:")
        self.leave_totals()
        self.op("bar.sync 0;")
        self.sums()

    def leave_totals(self):
        """A warp's sums of weights and the answer of the counter, for after the last barrier."""
        total = self.across(self.by_column("total"), "sum", False)
        self.op(f"sub.u32 u, mw, base;", f"mov.b32 v, {self.m_at + 512};", "setp.ge.u32 p, u, v;")
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
            "mul.wide.u32 at, t, 8;", "add.u64 at, ppeak, at;", "setp.eq.u32 r, warp, 1;", "setp.eq.and.u32 r, g, 0, r;",
        )  # fmt: skip
        for i, peak in enumerate(self.by_column("peak")):
            column = 8 * (i // 2) + i % 2
            self.op(f"mad.lo.u32 u, t, 2, {column};", "setp.lt.and.u32 p, u, columns, r;")
            self.op(f"@p st.global.f32 [at+{4 * column}], {peak};")
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
        self.op("mov.b32 $0, next;")


def _float(number):
    return "0f" + struct.pack(">f", number).hex().upper()
