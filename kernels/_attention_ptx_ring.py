"""Tiles on their way through shared memory, in the PTX of kernels/_attention_ptx.py on compute capability 9.0.

Copies of 16 bytes that no register waits for bring keys one tile and values two tiles ahead, two and three tiles of
them in rings; a warp's copies are of whole rows of a slot. 16-byte pieces of a row are permuted, so that the lanes
which read at one time find them in different banks: piece c of slot s lies at c ^ (s mod 8) of the keys' row and at
c ^ 2 (s mod 4) of the values'.

Scores are products of the four warps together: of a warp's 16 slots, keys from its registers, and the queries' digits,
which the matrix unit reads in shared memory by itself, 16 channels of 8 columns side by side. A warp goes on meanwhile.
"""

from ._attention_ptx_tile import WARPS, Tile
from .attention_control import TILE

KEYS, VALUES = 2, 3  # tiles in the rings
ALIGN = 256


class Ring(Tile):
    """What differs from tiles that go to registers."""

    asks_early = True

    @property
    def bytes_before_queries(self):
        return (KEYS + VALUES) * TILE * self.dim

    @property
    def query_bytes(self):
        return self.dim // 16 * self.piece_bytes

    @property
    def piece_bytes(self):
        """Of 16 channels of all columns' digits; 32 more, so that a warp's stores fall into different banks."""
        return 256 * self.n + 32

    def shared(self):
        return []

    def find_shared(self):
        """Shared memory is what Triton has reserved at launch: more than a text may declare by itself."""
        self.op("mov.u32 base, global_smem;", f"add.u32 base, base, {ALIGN - 1};", f"and.b32 base, base, {-ALIGN};")

    def addresses(self):
        super().addresses()
        pieces = self.dim // 16  # of a slot
        rows = 32 * WARPS // pieces  # that the block's threads copy at a time
        self.reg("b32", "piece", "row", "keyto", "keyto2", "valueto", "valuefrom", "toslot", "fromslot", "keyfrom")
        self.reg("b32", "keyfrom2", "first_value", "valuefrom")
        self.op(
            f"and.b32 piece, tid, {pieces - 1};", f"shr.u32 row, tid, {pieces.bit_length() - 1};",
            f"mul.lo.u32 u, row, {self.dim};", "mad.lo.u32 u, piece, 16, u;", "cvt.u64.u32 at, u;",
            "add.u64 kptr, pk, at;", "add.u64 vptr, pv, at;",
            "and.b32 u, row, 7;", "xor.b32 u, u, piece;", f"mad.lo.u32 keyto, row, {self.dim}, base;",
            "mad.lo.u32 keyto, u, 16, keyto;",
            "and.b32 u, row, 3;", "shl.b32 u, u, 1;", "xor.b32 u, u, piece;",
            f"mad.lo.u32 valueto, row, {self.dim}, base;",
            "mad.lo.u32 valueto, u, 16, valueto;", f"add.u32 valueto, valueto, {KEYS * TILE * self.dim};",
            # keys: lanes 8 m .. + 7 point to slots 16 w + 8 (m mod 2) .. + 7, piece m / 2, of what lanes take
            "and.b32 u, lane, 15;", "mad.lo.u32 u, warp, 16, u;", f"mad.lo.u32 keyfrom, u, {self.dim}, base;",
            "shr.u32 u, lane, 4;", "and.b32 v, lane, 7;", "xor.b32 u, u, v;", "mad.lo.u32 keyfrom, u, 16, keyfrom;",
            # values: slot t, byte w D / 4 + g D / 32
            f"mul.lo.u32 u, warp, {self.dim // 4};", f"mad.lo.u32 u, g, {self.dim // 32}, u;",
            "shr.u32 v, u, 4;", "and.b32 u, u, 15;", "shl.b32 w, t, 1;", "xor.b32 v, v, w;", "mad.lo.u32 u, v, 16, u;",
            f"mad.lo.u32 u, t, {self.dim}, u;", f"add.u32 u, u, {KEYS * TILE * self.dim};",
            "add.u32 first_value, base, u;",
            "mov.b32 toslot, 0;", "mov.b32 fromslot, 0;",
        )  # fmt: skip
        for name in ("keyto", "keyfrom"):
            self.op(f"mad.lo.u32 {name}2, {name}, 2, {TILE * self.dim};")
        self.describe_queries()
        self.copied = rows * self.dim  # bytes

    def describe_queries(self):
        """The matrix unit's descriptions of where the digits of each 32 channels lie, in units of 16 bytes."""
        described = self.reg("b64", *(f"queries_{step}" for step in range(self.dim // 32)))
        self.reg("pred", "none", "some")
        self.op("setp.ne.u32 none, 0, 0;", "setp.eq.u32 some, 0, 0;", f"add.u32 u, base, {self.q_at};")
        self.op("and.b32 u, u, 0x3ffff;", "shr.u32 u, u, 4;", "cvt.u64.u32 queries_0, u;")
        # from 8 columns to the next 128 bytes, from 16 channels to the next a piece
        self.op(f"or.b64 queries_0, queries_0, {8 << 32 | self.piece_bytes // 16 << 16};")
        for step, register in enumerate(described[1:], 1):
            self.op(f"add.u64 {register}, queries_0, {2 * self.piece_bytes // 16 * step};")

    def first_loads(self):
        self.op("bar.sync 0;")  # a slower warp may still read the last values of the part before
        self.copy_keys()
        self.load_scales()

    def later_loads(self):
        self.request()

    def request(self):
        """The keys of the next tile but one and the values of the next, each a request of its own."""
        if "loads" in self.without and self.again:
            self.op("cp.async.commit_group;", "cp.async.commit_group;")
            return
        self.copy_keys()
        self.copy("valueto", "vptr")
        self.op(
            f"mad.wide.u32 vptr, stride, {self.dim}, vptr;", f"add.u32 toslot, toslot, {TILE * self.dim};",
            f"add.u32 valueto, valueto, {TILE * self.dim};", f"setp.eq.u32 p, toslot, {VALUES * TILE * self.dim};",
            f"@p sub.u32 valueto, valueto, {VALUES * TILE * self.dim};", "@p mov.b32 toslot, 0;",
        )  # fmt: skip

    def copy_keys(self):
        self.op("setp.gt.u32 p2, keyleft, 0;")
        self.copy("keyto", "kptr", "@p2 ")
        self.op(f"mad.wide.u32 kptr, stride, {self.dim}, kptr;", "@p2 sub.u32 keyleft, keyleft, 1;")
        self.flip("keyto")

    def copy(self, to, source, guard=""):
        """A thread's pieces of a tile."""
        for at in range(0, TILE * self.dim, self.copied):
            self.op(f"{guard}cp.async.cg.shared.global [{to}+{at}], [{source}+{at}], 16;")
        self.op("cp.async.commit_group;")

    def arrived(self, pending):
        self.op(f"cp.async.wait_group {pending};")

    def ask_scores(self):
        keys = [self.reg("b32", *(f"k_{step}_{i}" for i in range(4))) for step in range(self.dim // 32)]
        turned = self.reg("b32", *(f"keyfrom_{i}" for i in range(4)))
        for i, register in enumerate(turned):
            self.op(f"xor.b32 {register}, keyfrom, {32 * i};")
        for step, words in enumerate(keys):
            at = f"{turned[step % 4]}+{128 * (step // 4)}"
            self.op(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{', '.join(words)}}}, [{at}];")
            if "scores" in self.without:
                self.keep(words)
        self.flip("keyfrom")
        if "scores" in self.without:
            return
        sums = ", ".join(register for digit in range(2) for n in range(self.n) for register in self.sum(digit, n))
        self.op("wgmma.fence.sync.aligned;")
        for step, words in enumerate(keys):
            kind = f"m64n{16 * self.n}k32.s32.s8.s8"
            rest = f"{{{', '.join(words)}}}, queries_{step}, {'some' if step else 'none'};"
            self.op(f"wgmma.mma_async.sync.aligned.{kind} {{{sums}}}, {rest}")
        self.op("wgmma.commit_group.sync.aligned;")

    def take_scores(self):
        if "scores" not in self.without:
            self.op("wgmma.wait_group.sync.aligned 0;")
        super().take_scores()

    def begin_values(self):
        """Where the tile lies, into valuefrom; `fromslot` moves on to the next."""
        self.op(
            "add.u32 valuefrom, first_value, fromslot;", f"add.u32 fromslot, fromslot, {TILE * self.dim};",
            f"setp.eq.u32 p, fromslot, {VALUES * TILE * self.dim};", "selp.b32 fromslot, 0, fromslot, p;",
        )  # fmt: skip

    def values(self, s):
        rows = super().values(s)
        kind = f"v{self.x}.b32" if self.x > 1 else "b32"
        for words, row in zip(rows, (0, 8, 4, 12), strict=True):
            self.op(f"ld.shared.{kind} {{{', '.join(words)}}}, [valuefrom+{(16 * s + row) * self.dim}];")
        return rows

    def next_values(self, s):
        """Nothing: `request` asks."""

    def find_digits(self):
        self.op(f"add.u32 u, base, {self.q_at};", "mad.lo.u32 u, warp, 128, u;", "mad.lo.u32 u, g, 16, u;")
        self.op(f"mad.lo.u32 u, t, {self.piece_bytes}, u;")

    def digits_at(self, digit, j):
        return 128 * self.n * digit + 4 * j * self.piece_bytes

    def store_queries(self):
        super().store_queries()
        self.op("fence.proxy.async.shared::cta;")  # for the matrix unit, which reads them
