// Reading a matrix by pointers, for tiles.cu: one per unit that a thread loads, with the distance of neighbours along k.

template <typename T, int UNITS>
struct Units {
  const T* at[UNITS];
  int by[UNITS];
  int depth;
  // The unit's first element, or null where its row is beyond the matrix.
  DEVICE_MEMBER void set(int unit, const T* first, int k, int by_k) {
    at[unit] = first ? first + (i64)k * by_k : first;
    by[unit] = by_k;
  }
  DEVICE_MEMBER f32 one(int unit, int k, int k0) const {
    return k < depth && at[unit] ? widen(at[unit][(i64)k0 * by[unit]]) : 0.0f;
  }
#if HALVES
  DEVICE_MEMBER u32 pair(int unit, int k, int k0) const {
    if (k >= depth || !at[unit]) return 0;
    const T* first = at[unit] + (i64)k0 * by[unit];
    if (k + 1 == depth) return first->bits;
    if (by[unit] == 1 && (u64)first % 4 == 0) return *(const u32*)first;
    return first->bits | (u32)first[by[unit]].bits << 16;
  }
#endif
};
