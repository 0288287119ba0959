// Reading a matrix by pointers, for tiles.cu: one per unit that a thread loads, with the distance of neighbours along k.
//
// What lies beyond the matrix is a zero. To branch around each load would cost more than the load: where there is nothing to read,
// an element that is there is read and dropped.

// Reads an operand's element. The compiler makes branches of loads whose value may be dropped, unless it does not know them as loads.
#ifndef CONVOKE_HOST
DEVICE u32 read(const u32* at) {
  u32 found;
  asm("{.reg .u64 place; cvta.to.global.u64 place, %1; ld.global.nc.u32 %0, [place];}" : "=r"(found) : "l"(at));
  return found;
}
DEVICE u16 read(const u16* at) {
  u16 found;
  asm("{.reg .u64 place; cvta.to.global.u64 place, %1; ld.global.nc.u16 %0, [place];}" : "=h"(found) : "l"(at));
  return found;
}
#else
DEVICE u32 read(const u32* at) { return *at; }
DEVICE u16 read(const u16* at) { return *at; }
#endif
DEVICE f32 read(const f32* at) { return of_bits(read((const u32*)at)); }
DEVICE f16 read(const f16* at) { return f16{read(&at->bits)}; }
DEVICE bf16 read(const bf16* at) { return bf16{read(&at->bits)}; }

template <typename T, int UNITS>
struct Units {
  const T* at[UNITS];
  int by[UNITS];
  // What k may grow by before there is nothing, which is 0 for a row beyond the matrix.
  int rest[UNITS];
  int depth;
  // Whether the two elements of each pair are one aligned word.
  bool wide = true;
  // The unit's first element of its row, or an element of the matrix where the row is beyond it.
  DEVICE_MEMBER void set(int unit, const T* first, bool is_in, int k, int by_k) {
    is_in = is_in && k < depth;
    at[unit] = is_in ? first + (i64)k * by_k : first;
    by[unit] = by_k;
    rest[unit] = is_in ? depth - k : 0;
    wide = wide && by_k == 1 && depth % 2 == 0 && (u64)at[unit] % 4 == 0;
  }
  DEVICE_MEMBER f32 one(int unit, int k0) const {
    const bool is_in = k0 < rest[unit];
    const T found = read(at[unit] + (is_in ? (i64)k0 * by[unit] : 0));
    return is_in ? widen(found) : 0.0f;
  }
#if HALVES
  template <bool WIDE>
  DEVICE_MEMBER u32 pair(int unit, int k0) const {
    const bool is_in = k0 < rest[unit], next_in = k0 + 1 < rest[unit];
    const T* first = at[unit] + (is_in ? (i64)k0 * by[unit] : 0);
    if (WIDE) {
      const u32 both = read((const u32*)first);
      return is_in ? both : 0;
    }
    const u32 low = read(&first->bits), high = read(&first[next_in ? by[unit] : 0].bits);
    return (is_in ? low : 0) | (next_in ? high << 16 : 0);
  }
#endif
};
