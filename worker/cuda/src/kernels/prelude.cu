// What every kernel begins with. The same text is compiled for the CPU by the tests, which define CONVOKE_HOST and declare
// the qualifiers, the places of threads and the conversions of halves themselves.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

// Halves are stored as their bits, and computed in f32.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

struct Arguments {
  const void* inputs[5];
  void* output;
  i64* fault;
  i64 elements;
  i64 rank;
  i64 dims[16];
  i64 strides[5][16];
  i64 out_strides[16];
  i64 sizes[16];
  f64 numbers[4];
};
static_assert(sizeof(Arguments) == ARGUMENTS, "the parameter is the one of the worker");

#ifndef CONVOKE_HOST
#define DEVICE static __device__ __forceinline__
#define DEVICE_CALL static __device__ __noinline__
#define DEVICE_MEMBER __device__ __forceinline__
// A function that the worker launches, by its number. Its parameter stays where the driver put it: its address may be taken without
// a copy for each thread.
#define KERNEL(number) CROWDED_KERNEL(number, 1)
// The same, with so few registers that as many blocks go on a multiprocessor at once.
#define CROWDED_KERNEL(number, blocks) \
  extern "C" __global__ void __launch_bounds__(256, blocks) convoke_##number(const __grid_constant__ Arguments a)
#define SHARED __shared__
DEVICE f32 half_to_f32(u16 x) {
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
DEVICE u16 f32_to_half(f32 x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
DEVICE u32 bits_of(f32 x) { return __float_as_uint(x); }
DEVICE f32 of_bits(u32 x) { return __uint_as_float(x); }
DEVICE u64 bits_of(f64 x) { return __double_as_longlong(x); }
DEVICE f64 of_bits(u64 x) { return __longlong_as_double(x); }
#endif

// Conversions keep the sign and the upper bits of a NaN and make it quiet, as the CPU's do and the GPU's instructions do not.
DEVICE f32 widen(f16 x) {
  if ((x.bits & 0x7fff) > 0x7c00) return of_bits((u32)(x.bits & 0x8000) << 16 | 0x7fc00000 | (u32)(x.bits & 0x3ff) << 13);
  return half_to_f32(x.bits);
}
DEVICE f32 widen(bf16 x) { return of_bits((u32)x.bits << 16); }
template <typename T>
DEVICE T widen(T x) {
  return x;
}

// Rounds to the type of an element; the first parameter only names the type.
DEVICE f16 narrow(f16, f32 x) {
  u32 b = bits_of(x);
  if (x != x) return f16{(u16)((b >> 16 & 0x8000) | 0x7e00 | (b >> 13 & 0x3ff))};
  return f16{f32_to_half(x)};
}
DEVICE bf16 narrow(bf16, f32 x) {
  u32 b = bits_of(x);
  if (x != x) return bf16{(u16)(b >> 16 | 0x40)};
  return bf16{(u16)((b + 0x7fff + ((b >> 16) & 1)) >> 16)};
}
template <typename T>
DEVICE T narrow(T, T x) {
  return x;
}

DEVICE f64 f32_to_f64(f32 x) {
  u64 b = bits_of(x);
  return x == x ? (f64)x : of_bits(b >> 31 << 63 | 0x7ff8000000000000ull | (b & 0x7fffff) << 29);
}
DEVICE f32 f64_to_f32(f64 x) {
  u64 b = bits_of(x);
  return x == x ? (f32)x : of_bits((u32)(b >> 63 << 31 | 0x7fc00000 | (b >> 29 & 0x7fffff)));
}

DEVICE i64 first_element() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE i64 element_step() { return (i64)gridDim.x * blockDim.x; }

// The quotient, and the rest. Most numbers have 32 bits, whose division takes a fraction of the time.
DEVICE i64 divided(i64 i, i64 by, i64* rest) {
  i64 quotient = ((u64)i | (u64)by) >> 32 ? i / by : (i64)((u32)i / (u32)by);
  *rest = i - quotient * by;
  return quotient;
}

// The places in N operands, and in the result, of element i of a grid.
template <int N>
DEVICE i64 places(const Arguments& a, i64 i, i64* at) {
  i64 out = 0;
  for (int k = 0; k < N; k++) at[k] = 0;
  for (i64 d = a.rank - 1; d >= 0; d--) {
    i64 c = i;
    i = d > 0 ? divided(i, a.dims[d], &c) : 0;
    for (int k = 0; k < N; k++) at[k] += c * a.strides[k][d];
    out += c * a.out_strides[d];
  }
  return out;
}

// Elementary functions on f32 by the formulas of the CPU's kernels (worker/kernels/src/math): IEEE operations alone, so that
// no approximate instruction takes part.
#define LN2_HI 0.693115234375f
#define LN2_LO 3.1946185e-5f
#define ROUND 12582912.0f
#define INFINITE of_bits((u32)0x7f800000)
#define NOT_A_NUMBER of_bits((u32)0x7fc00000)

DEVICE f32 clamp(f32 x, f32 lo, f32 hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}
DEVICE f32 exp_tail(f32 r) {
  f32 p = 0.0013926251f;
  p = fmaf(p, r, 0.008363233f);
  p = fmaf(p, r, 0.041666556f);
  p = fmaf(p, r, 0.16666577f);
  return fmaf(p, r, 0.5f);
}
DEVICE i32 exp_reduce(f32 x, f32* r) {
  f32 shifted = fmaf(x, 1.44269504f, ROUND);
  f32 n = shifted - ROUND;
  *r = fmaf(n, -LN2_LO, fmaf(n, -LN2_HI, x));
  return (i32)(bits_of(shifted) - bits_of(ROUND));
}
DEVICE f32 exp2i(i32 n) { return of_bits((u32)(n + 127) << 23); }
DEVICE f32 fn_exp(f32 x) {
  f32 r;
  i32 n = exp_reduce(clamp(x, -105.0f, 89.5f), &r);
  f32 p = fmaf(r * r, exp_tail(r), r) + 1.0f;
  i32 half = n >> 1;
  return p * exp2i(half) * exp2i(n - half);
}
DEVICE f32 fn_expm1(f32 x) {
  f32 r;
  i32 n = exp_reduce(clamp(x, -30.0f, 89.5f), &r);
  f32 q = fmaf(r * r, exp_tail(r), r);
  i32 half = n >> 1;
  f32 s = exp2i(half), t = exp2i(n - half);
  f32 y = fmaf(s, q, s - exp2i(half - n)) * t;
  return x == 0.0f ? x : y;
}
DEVICE f32 fn_tanh(f32 x) {
  f32 r;
  i32 n = exp_reduce(clamp(fabsf(x) * 2.0f, 0.0f, 20.0f), &r);
  f32 q = fmaf(r * r, exp_tail(r), r);
  f32 s = exp2i(n);
  f32 e = fmaf(s, q, s - 1.0f);
  return copysignf(e / (e + 2.0f), x);
}
DEVICE f32 ln_parts(f32 f, f32 n) {
  f32 p = 0.069716114f;
  p = fmaf(p, f, -0.11479734f);
  p = fmaf(p, f, 0.1168542f);
  p = fmaf(p, f, -0.124256874f);
  p = fmaf(p, f, 0.14249058f);
  p = fmaf(p, f, -0.16667802f);
  p = fmaf(p, f, 0.20000716f);
  p = fmaf(p, f, -0.24999997f);
  p = fmaf(p, f, 0.3333333f);
  f32 square = f * f;
  f32 cube = square * f;
  f32 small = fmaf(n, LN2_LO, cube * p);
  small = fmaf(square, -0.5f, small);
  return fmaf(n, LN2_HI, f + small);
}
DEVICE f32 ln_split(f32 x, f32* n) {
  bool subnormal = x < 1.17549435e-38f;
  f32 scaled = subnormal ? x * 8388608.0f : x;
  i32 offset = (i32)(bits_of(scaled) - 0x3f3504f3u);
  *n = (f32)(offset >> 23) + (subnormal ? -23.0f : 0.0f);
  return of_bits((u32)((offset & 0x007fffff) + 0x3f3504f3)) - 1.0f;
}
DEVICE f32 fn_log(f32 x) {
  f32 n;
  f32 f = ln_split(x, &n);
  f32 y = ln_parts(f, n);
  y = x == INFINITE ? x : y;
  y = x == 0.0f ? -INFINITE : y;
  return x < 0.0f || x != x ? NOT_A_NUMBER : y;
}
DEVICE f32 fn_log1p_unit(f32 z) {
  f32 u = 1.0f + z, n;
  f32 lost = z - (u - 1.0f);
  f32 f = ln_split(u, &n);
  return ln_parts(f, n) + lost / u;
}
DEVICE f32 fn_erf(f32 x) {
  f32 t = clamp(fabsf(x), 0.0f, 4.0f);
  f32 s = t * t;
  f32 r = fmaf(-1.7285347e-5f, t, 3.831972e-4f);
  f32 u = fmaf(-3.8839644e-3f, t, 2.4254622e-2f);
  r = fmaf(r, s, u);
  r = fmaf(r, t, -1.06777877e-1f);
  r = fmaf(r, t, -6.3484687e-1f);
  r = fmaf(r, t, -1.2871751e-1f);
  r = fmaf(r, t, -t);
  f32 far = 1.0f - fn_exp(r);
  f32 p = -5.967617e-4f;
  p = fmaf(p, s, 4.991194e-3f);
  p = fmaf(p, s, -2.6768135e-2f);
  p = fmaf(p, s, 1.12819925e-1f);
  p = fmaf(p, s, -3.7612534e-1f);
  p = fmaf(p, s, 1.2837917e-1f);
  f32 near = fmaf(p, t, t);
  return copysignf(t > 0.9277344f ? far : near, x);
}
DEVICE f32 fn_sigmoid(f32 x) {
  f32 e = fn_exp(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
DEVICE f32 fn_softplus(f32 x) {
  f32 y = (x > 0.0f ? x : 0.0f) + fn_log1p_unit(fn_exp(-fabsf(x)));
  return x != x ? x : y;
}
DEVICE f32 fn_mish(f32 x) {
  f32 e = fn_exp(x > 20.0f ? 20.0f : x);
  f32 n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}
DEVICE f32 fn_gelu(f32 x) { return 0.5f * x * (1.0f + fn_erf(x / 1.41421356237309504880f)); }
DEVICE f32 fn_gelu_tanh(f32 x) {
  f32 inner = x + 0.044715f * (x * x * x);
  return 0.5f * x * (1.0f + fn_tanh(0.7978845608028654f * inner));
}
DEVICE f32 fn_hard_sigmoid(f32 x, f32 alpha, f32 beta) {
  f32 y = alpha * x + beta;
  y = y > 1.0f ? 1.0f : y;
  return y < 0.0f ? 0.0f : y;
}
DEVICE f64 pow_log2(f64 x) {
  i64 offset = (i64)(bits_of(x) - 0x3fe6a09e667f3bcdull);
  f64 n = (f64)(i32)(offset >> 52);
  f64 mantissa = of_bits((u64)((offset & 0x000fffffffffffffll) + 0x3fe6a09e667f3bcdll));
  f64 s = (mantissa - 1.0) / (mantissa + 1.0);
  f64 t = s * s;
  f64 p = 0.2429382460632632;
  p = fma(p, t, 0.2614424555713655);
  p = fma(p, t, 0.3206164421244846);
  p = fma(p, t, 0.4121984013068434);
  p = fma(p, t, 0.5770780172508729);
  p = fma(p, t, 0.9617966939243245);
  p = fma(p, t, 2.885390081777927);
  return fma(s, p, n);
}
DEVICE f64 pow_exp2(f64 x) {
  const f64 round = 6755399441055744.0;
  f64 shifted = x + round;
  f64 r = x - (shifted - round);
  f64 p = 1.3255240797206968e-6;
  p = fma(p, r, 1.531010238238051e-5);
  p = fma(p, r, 1.5403455792749645e-4);
  p = fma(p, r, 1.3333450481819327e-3);
  p = fma(p, r, 9.61812915916476e-3);
  p = fma(p, r, 5.5504109412957174e-2);
  p = fma(p, r, 0.24022650695812833);
  p = fma(p, r, 0.693147180545911);
  p = fma(p, r, 1.0);
  u64 n = bits_of(shifted) - bits_of(round);
  return p * of_bits((u64)((n + 1023) << 52));
}
DEVICE f32 fn_pow(f32 x, f32 y) {
  f32 magnitude = fabsf(x);
  f64 l = pow_log2((f64)magnitude);
  l = magnitude == INFINITE ? (f64)INFINITE : l;
  l = magnitude == 0.0f ? -(f64)INFINITE : l;
  f64 e = l * (f64)y;
  e = e < -300.0 ? -300.0 : e;
  e = e > 300.0 ? 300.0 : e;
  f32 z = (f32)pow_exp2(e);
  z = magnitude == 1.0f ? 1.0f : z;
  bool whole = floorf(y) == y;
  bool odd = whole && fabsf(y) < 16777216.0f && floorf(y * 0.5f) != y * 0.5f;
  z = (bits_of(x) >> 31) && odd ? -z : z;
  bool invalid = x < 0.0f && !whole && magnitude != INFINITE;
  z = invalid || x != x || y != y ? NOT_A_NUMBER : z;
  z = y == 0.0f || x == 1.0f ? 1.0f : z;
  z = y == 2.0f ? x * x : z;
  return y == 3.0f ? x * x * x : z;
}

// The lesser and the greater of two elements; of floats, NaN where either is NaN.
template <typename T>
DEVICE T least(T a, T b) {
  return a < b || a != a ? a : b;
}
template <typename T>
DEVICE T greatest(T a, T b) {
  return a > b || a != a ? a : b;
}

// A float truncated to an integer, saturated; NaN gives 0.
template <typename I>
DEVICE I truncated(f64 x, f64 lo, f64 hi, I least_of, I greatest_of) {
  if (x != x) return 0;
  if (x <= lo) return least_of;
  if (x >= hi) return greatest_of;
  return (I)x;
}
