// Reading a matrix by pointers, for tiles.cu: one per unit that a thread loads, with the distance of neighbours along k. What
// lies beyond the matrix is a zero.

// Reads an element of an operand, or gives a zero where there is none. The compiler makes of this a branch, or a load whose value it
// drops, both of which cost more than the load; the GPU has an instruction for it.
#ifndef CONVOKE_HOST
DEVICE u32 read(const u32* at, bool is_in) {
  u32 found;
  asm("{.reg .pred in; .reg .u64 place; setp.ne.u32 in, %2, 0; cvta.to.global.u64 place, %1; mov.b32 %0, 0; @in ld.global.nc.u32 %0, [place];}"
      : "=r"(found)
      : "l"(at), "r"((u32)is_in));
  return found;
}
DEVICE u16 read(const u16* at, bool is_in) {
  u16 found;
  asm("{.reg .pred in; .reg .u64 place; setp.ne.u32 in, %2, 0; cvta.to.global.u64 place, %1; mov.b16 %0, 0; @in ld.global.nc.u16 %0, [place];}"
      : "=h"(found)
      : "l"(at), "r"((u32)is_in));
  return found;
}
#else
DEVICE u32 read(const u32* at, bool is_in) { return is_in ? *at : 0; }
DEVICE u16 read(const u16* at, bool is_in) { return is_in ? *at : 0; }
#endif
DEVICE f32 read(const f32* at, bool is_in) { return of_bits(read((const u32*)at, is_in)); }
DEVICE f16 read(const f16* at, bool is_in) { return f16{read(&at->bits, is_in)}; }
DEVICE bf16 read(const bf16* at, bool is_in) { return bf16{read(&at->bits, is_in)}; }

template <typename T, int UNITS>
struct Units {
  const T* at[UNITS];
  int by[UNITS];
  // What k may grow by before there is nothing, which is 0 for a row beyond the matrix.
  int rest[UNITS];
  int depth;
  // Whether the two elements of each pair are one aligned word. What is beyond the matrix does not count, so that the threads of a warp
  // agree wherever they can.
  bool wide = true;
  // `first` is the first element of the unit's row, if the row is in the matrix.
  DEVICE_MEMBER void set(int unit, const T* first, bool is_in, int k, int by_k) {
    is_in = is_in && k < depth;
    at[unit] = is_in ? first + (i64)k * by_k : first;
    by[unit] = by_k;
    rest[unit] = is_in ? depth - k : 0;
    wide = wide && by_k == 1 && depth % 2 == 0 && (!is_in || (u64)at[unit] % 4 == 0);
  }
  DEVICE_MEMBER f32 one(int unit, int k0) const {
    return widen(read(at[unit] + (i64)k0 * by[unit], k0 < rest[unit]));
  }
#if HALVES
  template <bool WIDE>
  DEVICE_MEMBER u32 pair(int unit, int k0) const {
    const T* first = at[unit] + (i64)k0 * by[unit];
    if (WIDE) return read((const u32*)first, k0 < rest[unit]);
    const u32 low = read(&first->bits, k0 < rest[unit]), high = read(&first[by[unit]].bits, k0 + 1 < rest[unit]);
    return low | high << 16;
  }
#endif
};
