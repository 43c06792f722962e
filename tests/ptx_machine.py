"""Runs the PTX of one block on a CPU, all threads in step: what kernels/_attention_ptx.py writes, and no more."""

import re

import numpy as np

LANES = np.arange(128)
SHARED = {"shared_bytes": 0, "global_smem": 1040}  # where it lies: reserved at launch, its address is a multiple of 16


def _mma(d, a, b, c):
    """16 x 8 += 16 x 16 times 16 x 8 of every warp; registers [128] in, registers out."""

    def halves(x):
        return x.view(np.float16).reshape(4, 8, 4, 2).astype(np.float32)  # [warp, g, t, half]

    left = np.zeros((4, 16, 16), np.float32)
    right = np.zeros((4, 16, 8), np.float32)
    for i, x in enumerate(a):
        left[:, 8 * (i % 2) :, 8 * (i // 2) :][:, :8, :8] = halves(x).reshape(4, 8, 8)
    for i, x in enumerate(b):
        right[:, 8 * i :][:, :8] = halves(x).transpose(0, 2, 3, 1).reshape(4, 8, 8)
    out = left @ right
    for i in range(4):
        part = out[:, 8 * (i // 2) :][:, :8].reshape(4, 8, 4, 2)[..., i % 2]
        c[i].view(np.float32)[:] += 0  # keeps NaN payloads as they are
        d[i] = (c[i].view(np.float32) + part.reshape(128)).view(np.uint32)
    return d


def _code_rows(a):
    """Rows [warp, 16, 32] of int8 from the four registers of each lane."""
    left = np.zeros((4, 16, 32), np.int64)
    for i, x in enumerate(a):
        codes = x.copy().view(np.int8).reshape(4, 8, 16)  # [warp, g, 4 t + byte]
        left[:, 8 * (i % 2) :, 16 * (i // 2) :][:, :8, :16] = codes
    return left


def _columns(out):
    """Four registers for every 8 columns of out [warp, 16, 8 n]."""
    groups = out.shape[2] // 8
    lying = out.astype(np.int32).reshape(4, 2, 8, groups, 4, 2).transpose(3, 1, 5, 0, 2, 4)  # [n, high, e, w, g, t]
    return np.ascontiguousarray(lying).reshape(4 * groups, 128).view(np.uint32)


def _mma_codes(a, b, c):
    """16 x 8 += 16 x 32 times 32 x 8 of every warp, int8 in int32; registers in and out."""
    right = np.zeros((4, 32, 8), np.int64)
    for i, x in enumerate(b):
        codes = x.copy().view(np.int8).reshape(4, 8, 16)  # [warp, column, 4 t + byte]
        right[:, 16 * i :][:, :16] = codes.transpose(0, 2, 1)
    return [x + y for x, y in zip(c, _columns(_code_rows(a) @ right), strict=True)]


def _prmt(a, b, selector):
    both = np.stack([a >> 8 * i & 255 for i in range(4)] + [b >> 8 * i & 255 for i in range(4)])
    out = np.zeros_like(a)
    for i in range(4):
        out |= both[selector >> 4 * i & 7] << np.uint32(8 * i)
    return out


class Machine:
    """128 threads; `memory` is a byte array at address 0, operands are integers."""

    def __init__(self, text: str, memory: np.ndarray, operands: dict[str, int]):
        self.memory, self.registers, self.output = memory, {}, None
        self.shared = np.full(131072, 0xFF, np.uint8)
        self.operands, self.count = operands, 0
        self.code, self.labels = [], {}
        for piece in text.strip().strip("{}").replace("\n", " ").split(";"):
            line = piece.strip()
            while match := re.match(r"(\w+):\s*", line):
                self.labels[match[1]] = len(self.code)
                line = line[match.end() :]
            if not line or line.startswith((".reg", ".shared")):
                continue
            match = re.match(r"(?:@(!?)(\w+) )?(\S+)\s*(.*)", line)
            names = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", match[4])
            self.code.append((match[1] == "!", match[2], match[3], names))

    def get(self, name, kind=np.uint32):
        if name in self.registers:
            value = self.registers[name]
            return value.view(kind) if value.dtype.itemsize == np.dtype(kind).itemsize else value.astype(kind)
        if name in ("%tid.x", "%laneid"):
            return (LANES % (32 if name == "%laneid" else 128)).astype(np.uint32)
        if name in SHARED:
            return np.full(128, SHARED[name], np.uint32)
        if name.startswith("$"):
            return np.full(128, self.operands[name], np.uint64).astype(kind)
        if name.startswith("0f"):
            return np.full(128, int(name[2:], 16), np.uint32).view(kind)
        return np.full(128, int(name, 0) & (2 ** (8 * np.dtype(kind).itemsize) - 1), np.uint64).astype(kind)

    def put(self, name, value, mask):
        if name == "$0":
            self.output = value
            return
        kind = np.uint64 if value.dtype.itemsize == 8 else bool if value.dtype == bool else np.uint32
        value = value if kind is bool else np.ascontiguousarray(value).view(kind)
        old = self.registers.get(name)
        if mask is not None and old is not None and old.dtype == value.dtype:
            value = np.where(mask, value, old)
        elif mask is not None and not mask.all():
            value = np.where(mask, value, np.full_like(value, 0x7FC0DEAD if kind is not bool else 0))
        self.registers[name] = value

    def run(self):
        at = 0
        with np.errstate(all="ignore"):
            while at < len(self.code):
                negative, guard, op, names = self.code[at]
                mask = None if guard is None else self.registers[guard] ^ negative
                self.count += 1
                at += 1
                if op == "bra":
                    assert mask is None or all(len(set(mask[w * 32 :][:32])) == 1 for w in range(4)), "divergence"
                    if mask is None or mask.all():
                        at = self.labels[names[0]]
                    elif mask.any():  # some warps skip a forward piece: they are masked off, one after the other
                        self.skip(at, self.labels[names[0]], ~mask)
                        at = self.labels[names[0]]
                else:
                    self.step(op, names, mask)
        return self.output

    def skip(self, start, end, alive):
        for negative, guard, op, names in self.code[start:end]:
            assert op != "bra"
            mask = alive if guard is None else alive & (self.registers[guard] ^ negative)
            self.step(op, names, mask)

    def address(self, name):
        base, _, offset = name.strip("[]").partition("+")
        wide = self.registers[base]
        return wide.astype(np.int64) + int(offset or 0)

    def step(self, op, names, mask):
        parts = op.split(".")
        kind = {"f32": np.float32, "s32": np.int32, "u64": np.uint64, "b64": np.uint64}.get(parts[-1], np.uint32)
        name, args = parts[0], names[1:]
        if name in ("ld", "st"):
            return self.move(name, "shared" in parts, names, mask)
        if name in ("bar", "griddepcontrol", "fence"):
            return None
        if name == "cp":  # done at once
            return self.copy(names, mask) if len(names) == 3 else None
        if name == "ldmatrix":
            return self.load_matrices(names)
        if name == "wgmma":
            return self.group_product(parts, names) if parts[1] == "mma_async" else None
        if op.startswith("mma.sync.aligned.m16n8k32"):
            d, a, b, c = ([y.strip() for y in x.strip("{}").split(",")] for x in names)
            for register, value in zip(d, _mma_codes(*([self.get(x) for x in g] for g in (a, b, c))), strict=True):
                self.put(register, value, mask)
            return None
        if name == "mma":
            d, a, b, c = ([y.strip() for y in x.strip("{}").split(",")] for x in names)
            out = _mma([None] * 4, *([self.get(x).copy() for x in group] for group in (a, b, c)))
            for register, value in zip(d, out, strict=True):
                self.put(register, value, mask)
            return None
        if name == "shfl":
            other = LANES ^ int(args[1]) if "bfly" in parts else LANES // 32 * 32 + self.get(args[1], np.uint32) % 32
            return self.put(names[0], self.get(args[0])[other], mask)
        if name == "redux":
            top = self.get(args[0], np.int32).reshape(4, 32).max(1)
            return self.put(names[0], np.repeat(top, 32), mask)
        if name == "vote":
            votes = self.registers[args[0]].reshape(4, 32).all(1)
            return self.put(names[0], np.repeat(votes, 32), mask)
        if name == "setp":
            return self.put(names[0], self.compare(parts, args, kind), mask)
        if name == "selp":
            return self.put(names[0], np.where(self.registers[args[2]], self.get(args[0]), self.get(args[1])), mask)
        if name == "atom":
            where, old = self.address(args[0]), self.get(names[0]).copy()
            for thread in np.flatnonzero(mask):
                word = self.memory[where[thread] :][:4].view(np.uint32)
                old[thread] = word[0]
                word[0] += int(args[1])
            return self.put(names[0], old, None)
        if name == "mul" and "wide" in parts:
            return self.put(names[0], self.get(args[0]).astype(np.uint64) * self.get(args[1]), mask)
        if name == "mad" and "wide" in parts:
            product = self.get(args[0], np.uint32).astype(np.uint64) * self.get(args[1], np.uint32)
            return self.put(names[0], product + self.get(args[2]), mask)
        if name == "cvt":
            return self.put(names[0], self.convert(op, args), mask)
        if op == "lop3.b32":
            a, b, c = (self.get(x) for x in args[:3])
            assert args[3] == "0x6a"
            return self.put(names[0], a & b ^ c, mask)
        if op == "prmt.b32":
            return self.put(names[0], _prmt(self.get(args[0]), self.get(args[1]), int(args[2], 0)), mask)
        if op in ("abs.bf16x2", "abs.f16x2"):
            return self.put(names[0], self.get(args[0]) & np.uint32(0x7FFF7FFF), mask)
        if op in ("max.NaN.bf16x2", "max.NaN.f16x2"):  # of numbers that are not negative
            a, b = (self.get(x).copy().view(np.uint16) for x in args)
            return self.put(names[0], np.maximum(a, b).view(np.uint32), mask)
        if op == "mov.b32" and names[0].startswith("{"):
            halves = self.get(args[0]).copy().view(np.uint16).reshape(-1, 2)
            for register, half in zip(names[0].strip("{}").split(","), halves.T, strict=True):
                self.put(register.strip(), half.astype(np.uint32), mask)
            return None
        if op == "sub.rn.f16x2":
            a, b = (self.get(x).copy().view(np.float16) for x in args)
            return self.put(names[0], (a - b).view(np.uint32), mask)
        if kind is np.uint32 and parts[-1] == "f32":
            kind = np.float32
        values = [self.get(x, kind) for x in args]
        functions = {
            "mov": lambda a: a.copy(), "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
            "mad": lambda a, b, c: a * b + c, "and": lambda a, b: a & b, "xor": lambda a, b: a ^ b,
            "or": lambda a, b: a | b,
            "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "ex2": lambda a: np.exp2(a),
            "max": np.maximum if "NaN" in parts else np.fmax if kind is np.float32 else np.maximum, "min": np.minimum,
            "rcp": lambda a: 1 / a,
            "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32),
        }  # fmt: skip
        return self.put(names[0], functions[name](*values), mask)

    def group_product(self, parts, names):
        """Of 64 x 32 codes in registers and those that a description finds in shared memory; done at once."""
        d, a = ([y.strip() for y in x.strip("{}").split(",")] for x in names[:2])
        columns = int(re.match(r"m64n(\d+)k32", parts[4])[1])
        described = int(self.registers[names[2]][0])
        start, far, near = ((described >> bit & 0x3FFF) * 16 for bit in (0, 16, 32))
        assert described >> 62 == 0 and len(set(self.registers[names[2]])) == 1  # no swizzling
        column, byte = np.arange(columns)[:, None], np.arange(32)[None]
        at = start + column // 8 * near + column % 8 * 16 + byte // 16 * far + byte % 16
        right = self.shared[at].view(np.int8).astype(np.int64).T
        out = _columns(_code_rows([self.get(x) for x in a]) @ right)
        for register, value in zip(d, out, strict=True):
            self.put(register, value + (self.get(register) if self.registers[names[3]][0] else 0), None)

    def copy(self, names, mask):
        """16 bytes of a thread from memory to shared memory."""
        to, source = (self.address(name) for name in names[:2])
        for thread in LANES if mask is None else np.flatnonzero(mask):
            assert to[thread] % 16 == source[thread] % 16 == 0
            self.shared[to[thread] :][:16] = self.memory[source[thread] :][:16]

    def load_matrices(self, names):
        """Four matrices of 8 rows of 16 bytes; lanes 8 m .. + 7 of a warp have the addresses of the m-th one's rows."""
        at = self.address(names[1]).reshape(4, 4, 8)
        for m, register in enumerate(names[0].strip("{}").split(",")):
            rows = self.shared[at[:, m, :, None] + np.arange(16)].copy().view(np.uint32)  # [warp, row, word]
            self.put(register.strip(), rows.reshape(128), None)

    def compare(self, parts, args, kind):
        a, b = self.get(args[0], kind), self.get(args[1], kind)
        found = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[parts[1]]
        if parts[2] in ("and", "or"):
            return found & self.registers[args[2]] if parts[2] == "and" else found | self.registers[args[2]]
        return found

    def convert(self, op, args):
        if op == "cvt.u64.u32":
            return self.get(args[0]).astype(np.uint64)
        if op == "cvt.f32.f16":
            return self.get(args[0]).astype(np.uint16).view(np.float16).astype(np.float32)
        if op == "cvt.rn.f32.s32":
            return self.get(args[0], np.int32).astype(np.float32)
        assert op == "cvt.rn.f16x2.f32", op
        high, low = (self.get(x, np.float32).astype(np.float16) for x in args)
        return np.stack([low, high], 1).view(np.uint32)[:, 0]

    def move(self, name, shared, names, mask):
        place = self.shared if shared else self.memory
        address, registers = names if name == "st" else names[::-1]
        at = self.address(address)
        threads = LANES if mask is None else np.flatnonzero(mask)
        for i, register in enumerate(x.strip() for x in registers.strip("{}").split(",")):
            index = at[threads, None] + 4 * i + np.arange(4)
            assert (index >= 0).all() and (index < len(place)).all(), (names, at)
            if name == "st":
                place[index] = self.get(register)[threads].copy().view(np.uint8).reshape(-1, 4)
            else:
                value = np.zeros(128, np.uint32)
                value[threads] = place[index].reshape(-1).view(np.uint32)
                self.put(register, value, mask)
