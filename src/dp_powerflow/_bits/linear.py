"""Products, factors and eigenvectors of small matrices in a fixed order of operations.

The normal law: draws from random words, Φ, log Φ and their inverses; the same bits everywhere.

Draws invert Φ by Wichura's algorithm AS 241 (1988); Φ is made of Cody's rational approximations as in Cephes.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import exp1, kernel, log1, log1p1, poly1
from dp_powerflow.units import FloatArray

# ----------------------------------------------------------------------------------------------------------
# The sums of NumPy, inside kernels: pairwise over what lies in a row, with the same bits.
#
# `np.sum` adds up to 128 numbers by eight running totals and splits longer rows in halves. A kernel that does
# the same in the same order can take the place of arrays of intermediate results.


_BLOCK = 128
_DEPTH = 192  # three for every time that 2⁶³ can be halved


@kernel
def row_sum(values: FloatArray, start: int, count: int) -> float:
    """Sum of `count` entries of an array (n,) from `start` on."""
    if count <= _BLOCK:
        return _block_sum(values, start, count)
    return _pairwise(values, start, count)


@kernel
def row_squares(values: FloatArray, start: int, count: int) -> float:
    """Sum of the squares of `count` entries of an array (n,) from `start` on."""
    own = values[start : start + count]
    return row_sum(own * own, 0, count)


@kernel
def _pairwise(values: FloatArray, start: int, count: int) -> float:
    """Halves of halves, the first one first; numba does not cache functions that call themselves."""
    todo = np.empty((_DEPTH, 2), dtype=np.int64)
    sums = np.empty(_DEPTH)
    todo[0, 0], todo[0, 1] = start, count
    waiting, known = 1, 0
    while waiting:
        waiting -= 1
        first, size = todo[waiting, 0], todo[waiting, 1]
        if size < 0:  # both halves are known
            known -= 1
            sums[known - 1] = sums[known - 1] + sums[known]
        elif size <= _BLOCK:
            sums[known] = _block_sum(values, first, size)
            known += 1
        else:
            half = size // 2
            half -= half % 8
            todo[waiting, 1] = -1
            todo[waiting + 1, 0], todo[waiting + 1, 1] = first + half, size - half
            todo[waiting + 2, 0], todo[waiting + 2, 1] = first, half
            waiting += 3
    whole: float = sums[0]
    return whole


@kernel
def _block_sum(a: FloatArray, s: int, n: int) -> float:
    if n < 8:
        total = 0.0
        for i in range(n):
            total += a[s + i]
        return total
    r0, r1, r2, r3 = a[s], a[s + 1], a[s + 2], a[s + 3]
    r4, r5, r6, r7 = a[s + 4], a[s + 5], a[s + 6], a[s + 7]
    whole = n - n % 8
    for i in range(s + 8, s + whole, 8):
        r0 += a[i]
        r1 += a[i + 1]
        r2 += a[i + 2]
        r3 += a[i + 3]
        r4 += a[i + 4]
        r5 += a[i + 5]
        r6 += a[i + 6]
        r7 += a[i + 7]
    whole_total: float = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for i in range(s + whole, s + n):
        whole_total += a[i]
    return whole_total


_SWEEPS = 60  # of Jacobi's method; ten are usual


def product(left: FloatArray, right: FloatArray) -> FloatArray:
    """left (..., K) times right (K, M) → (..., M), or times right (K,) → (...).

    Every entry is a sum over K in ascending order; it does not depend on the other rows.
    """
    rows = np.ascontiguousarray(left, dtype=np.float64).reshape(-1, left.shape[-1])
    columns = np.ascontiguousarray(right, dtype=np.float64).reshape(left.shape[-1], -1)
    out = np.zeros((rows.shape[0], columns.shape[1]))
    _product(rows, columns, out)
    return out.reshape((*left.shape[:-1], *right.shape[1:]))


@kernel
def _product(left: FloatArray, right: FloatArray, out: FloatArray) -> None:
    n_rows, inner = left.shape
    whole = inner - inner % 4
    for i in range(n_rows):
        row = out[i]
        for k in range(0, whole, 4):
            a, b, c, d = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            for j in range(row.size):
                part = row[j] + a * right[k, j]
                part = part + b * right[k + 1, j]
                part = part + c * right[k + 2, j]
                row[j] = part + d * right[k + 3, j]
        for k in range(whole, inner):
            a = left[i, k]
            for j in range(row.size):
                row[j] += a * right[k, j]


def gram(vectors: FloatArray) -> FloatArray:
    """Σ_d v_d·v_dᵀ of each stack: (n, D, K) → (n, K, K), symmetric to the last bit."""
    stacked = np.ascontiguousarray(vectors, dtype=np.float64)
    out = np.zeros((stacked.shape[0], stacked.shape[2], stacked.shape[2]))
    for one, into in zip(stacked, out, strict=True):
        _product(np.ascontiguousarray(one.T), one, into)
    return out


def norms(vectors: FloatArray) -> FloatArray:
    """L2 norm over the last axis, (..., K) → (...)."""
    return np.sqrt(product(vectors * vectors, np.ones(vectors.shape[-1])))


def within_ball(vectors: FloatArray, radius: float) -> FloatArray:
    """Vectors (..., K), each shortened to the radius if it is longer."""
    return np.asarray(vectors * np.minimum(1.0, radius / np.maximum(norms(vectors)[..., None], 1e-300)))


def cholesky(matrix: FloatArray) -> FloatArray:
    """Lower triangular factor of a symmetric positive definite matrix.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a pivot is not positive.
    """
    upper = np.array(matrix, dtype=np.float64, order="C")
    if not _cholesky(upper):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return np.ascontiguousarray(upper.T)


def is_positive_definite(matrix: FloatArray) -> bool:
    """Whether a symmetric matrix has a Cholesky factor."""
    return bool(_cholesky(np.array(matrix, dtype=np.float64, order="C")))


@kernel
def _cholesky(upper: FloatArray) -> bool:
    """Turn the upper triangle into the transposed factor, in place; False if there is none."""
    size = upper.shape[0]
    for k in range(size):
        if not upper[k, k] > 0.0:
            return False
        pivot = np.sqrt(upper[k, k])
        upper[k, k] = pivot
        for j in range(k + 1, size):
            upper[k, j] /= pivot
            upper[j, k] = 0.0
        for i in range(k + 1, size):
            a = upper[k, i]
            for j in range(i, size):
                upper[i, j] -= a * upper[k, j]
    return True


def solve_lower(factor: FloatArray, right: FloatArray, *, transposed: bool = False) -> FloatArray:
    """L⁻¹·right of a lower triangular L (K, K), or L⁻ᵀ·right; right (K,) or (K, n)."""
    out = np.array(right, dtype=np.float64, order="C")
    _solve(np.ascontiguousarray(factor), transposed, out.reshape(len(factor), -1))
    return out


def solve_upper(factor: FloatArray, right: FloatArray) -> FloatArray:
    """L⁻ᵀ·right of a lower triangular L (K, K); right (K,) or (K, n)."""
    return solve_lower(factor, right, transposed=True)


@kernel
def _solve(factor: FloatArray, transposed: bool, out: FloatArray) -> None:
    size = factor.shape[0]
    for step in range(size):
        i = size - 1 - step if transposed else step
        for k in range(i + 1 if transposed else 0, size if transposed else i):
            a = factor[k, i] if transposed else factor[i, k]
            for j in range(out.shape[1]):
                out[i, j] -= a * out[k, j]
        for j in range(out.shape[1]):
            out[i, j] /= factor[i, i]


def eigh(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues (K,) and eigenvectors (K, K), one per column, of a symmetric matrix; in no order.

    Jacobi's cyclic method.
    """
    work = np.array(matrix, dtype=np.float64, order="C")
    rows = np.eye(len(work))
    _jacobi(work, rows)
    return np.diag(work).copy(), np.ascontiguousarray(rows.T)


@kernel
def _jacobi(a: FloatArray, vectors: FloatArray) -> None:
    """Rotate `a` until it is diagonal; the rows of `vectors` become its eigenvectors."""
    size = a.shape[0]
    energy = 0.0
    for p in range(size):
        for q in range(size):
            energy += a[p, q] * a[p, q]
    limit = 1e-17 * np.sqrt(energy)
    for _ in range(_SWEEPS):
        rotated = False
        for p in range(size - 1):
            for q in range(p + 1, size):
                off = a[p, q]
                if not abs(off) > limit:
                    continue
                rotated = True
                theta = (a[q, q] - a[p, p]) / (2.0 * off)
                t = 1.0 / (abs(theta) + np.sqrt(theta * theta + 1.0))
                t = t if theta >= 0.0 else -t
                c = 1.0 / np.sqrt(t * t + 1.0)
                s = t * c
                first, second = a[p, p] - t * off, a[q, q] + t * off
                for j in range(size):
                    x, y = a[p, j], a[q, j]
                    a[p, j] = c * x - s * y
                    a[q, j] = s * x + c * y
                for j in range(size):
                    a[j, p] = a[p, j]
                    a[j, q] = a[q, j]
                a[p, p], a[q, q] = first, second
                a[p, q] = a[q, p] = 0.0
                for j in range(size):
                    x, y = vectors[p, j], vectors[q, j]
                    vectors[p, j] = c * x - s * y
                    vectors[q, j] = s * x + c * y
        if not rotated:
            return


WordArray = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

LOG_SQRT_2PI = 0.9189385332046727
_SQRT_HALF = 0.7071067811865476
_CHUNK = 1024
_DEEP = 27.0  # √−log p up to which AS 241 holds
# fmt: off
_CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)
_TAIL = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
     6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
     5.47593808499534494600e-4, 1.05075007164441684324e-9),
)
_FAR = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
     1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5,
     1.42151175831644588870e-7, 2.04426310338993978564e-15),
)
_ERF = (
    (5.55923013010394962768e4, 7.00332514112805075473e3, 2.23200534594684319226e3, 9.00260197203842689217e1,
     9.60497373987051638749e0),
    (4.92673942608635921086e4, 2.26290000613890934246e4, 4.59432382970980127987e3, 5.21357949780152679795e2,
     3.35617141647503099647e1, 1.0),
)
_ERFC = (
    (5.57535335369399327526e2, 1.02755188689515710272e3, 9.34528527171957607540e2, 5.26445194995477358631e2,
     1.96520832956077098242e2, 4.86371970985681366614e1, 7.46321056442269912687e0, 5.64189564831068821977e-1,
     2.46196981473530512524e-10),
    (5.57535340817727675546e2, 1.65666309194161350182e3, 2.24633760818710981792e3, 1.82390916687909736289e3,
     9.75708501743205489753e2, 3.54937778887819891062e2, 8.67072140885989742329e1, 1.32281951154744992508e1,
     1.0),
)
_ERFC_FAR = (
    (2.97886665372100240670e0, 7.40974269950448939160e0, 6.16021097993053585195e0, 5.01905042251180477414e0,
     1.27536670759978104416e0, 5.64189583547755073984e-1),
    (3.36907645100081516050e0, 9.60896809063285878198e0, 1.70814450747565897222e1, 1.20489539808096656605e1,
     9.39603524938001434673e0, 2.26052863220117276590e0, 1.0),
)
# fmt: on


@kernel
def _ratio(table: tuple[tuple[float, ...], tuple[float, ...]], x: float) -> float:
    return poly1(table[0], x) / poly1(table[1], x)


@kernel
def _tail_quantile(r: float) -> float:
    """−Φ⁻¹(p) for p = exp(−r²) below 0.075."""
    if r <= 5.0:
        return _ratio(_TAIL, r - 1.6)
    return _ratio(_FAR, r - 5.0)


@kernel
def ndtri1(p: float) -> float:
    """Φ⁻¹ of one probability."""
    q = p - 0.5
    if abs(q) <= 0.425:
        return q * _ratio(_CENTRE, 0.180625 - q * q)
    if p <= 0.0 or p >= 1.0:
        return -np.inf if p == 0.0 else (np.inf if p == 1.0 else np.nan)
    value = _tail_quantile(np.sqrt(-log1(p if q < 0.0 else 1.0 - p)))
    return -value if q < 0.0 else value


@kernel
def _scaled_erfc(a: float) -> float:
    """exp(a²)·erfc(a), a ≥ 1."""
    if a < 8.0:
        return _ratio(_ERFC, a)
    if a > 1e8:
        return 0.5641895835477563 / a
    return _ratio(_ERFC_FAR, a)


@kernel
def _gauss(x: float) -> float:
    """exp(−x²/2), the square without rounding: x is split into a part of few bits and the rest."""
    head = np.floor(abs(x) * 64.0 + 0.5) / 64.0
    rest = abs(x) - head
    return exp1(-0.5 * head * head) * exp1(-0.5 * rest * (abs(x) + head))


@kernel
def ndtr1(x: float) -> float:
    """Φ of one number."""
    a = abs(x) * _SQRT_HALF
    if a < 1.0:
        return 0.5 + 0.5 * (x * _SQRT_HALF) * _ratio(_ERF, a * a)
    if not a < 40.0:
        return x if x != x else (0.0 if x < 0.0 else 1.0)
    below = 0.5 * _gauss(x) * _scaled_erfc(a)
    return below if x < 0.0 else 1.0 - below


@kernel
def log_ndtr1(x: float) -> float:
    """log Φ of one number."""
    if x > 1.0:
        return log1p1(-ndtr1(-x))
    if x > -1.5:
        return log1(ndtr1(x))
    return -0.5 * x * x + log1(0.5 * _scaled_erfc(-x * _SQRT_HALF))


@kernel
def ndtri_exp1(y: float) -> float:
    """Φ⁻¹(e^y) of one log probability, y ≤ −1; deep in the tail too."""
    if y > -2.6:
        return ndtri1(exp1(y))
    r: float = np.sqrt(-y)
    if r <= _DEEP:
        return -_tail_quantile(r)
    x: float = -r * 1.4142135623730951
    for _ in range(4):
        value = log_ndtr1(x)
        x -= (value - y) / exp1(-0.5 * x * x - LOG_SQRT_2PI - value)
    return x


@kernel
def _from_words(words: WordArray, out: FloatArray) -> None:
    """Separate loops for the centre, the tails and the far tails: the first two run on vectors."""
    tails = np.empty(_CHUNK)
    places = np.empty(_CHUNK, dtype=np.int64)
    for start in range(0, words.size, _CHUNK):
        stop = min(start + _CHUNK, words.size)
        for i in range(start, stop):
            q = np.uint64((words[i] >> np.uint64(12)) | np.uint64(0x3FF0000000000000)).view(np.float64)
            out[i] = (q - 1.5) + 1.1102230246251565e-16
        count = 0
        for i in range(start, stop):
            places[count] = i
            tails[count] = out[i]
            count += abs(out[i]) > 0.425
        for i in range(start, stop):
            q = out[i]
            out[i] = q * _ratio(_CENTRE, 0.180625 - q * q)
        for n in range(count):
            r = np.sqrt(-log1(0.5 - abs(tails[n])))
            value = _tail_quantile(r)
            out[places[n]] = value if tails[n] > 0.0 else -value


def standard_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Independent standard normals, one per 64-bit word: Φ⁻¹((w + ½)/2⁵²) of its upper 52 bits w."""
    out = np.empty(shape)
    _from_words(generator.bit_generator.random_raw(out.size), out.reshape(-1))
    return out


@kernel
def _minus_logs(values: FloatArray) -> None:
    for i in range(values.size):
        values[i] = -log1(1.0 - values[i])


def standard_exponential(generator: np.random.Generator, size: int) -> FloatArray:
    """Independent standard exponentials (size,) by inversion."""
    values: FloatArray = generator.random(size)
    _minus_logs(values)
    return values
