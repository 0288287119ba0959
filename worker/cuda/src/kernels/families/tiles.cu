// Tiles of products. A family defines, between tiles_units.cu and this text,
//   L                                the type of elements of the left matrix,
//   HALVES                           1 where both are 16-bit and of the same type, which tensor cores multiply, else 0,
//   struct Tile                      what a tile is of: `Tile(a, number, edge)`, with `row0` and `column0`,
//   struct Left<UNITS>, Right<UNITS> readers of the units that a thread loads, made for (a, tile): `begin(unit, k, at, by)` is called
//                                    once per unit, with its first k, its row or column, and what k grows by from one unit to the
//                                    next; `one(unit, k0)` gives an element in f32, and `pair<WIDE>(unit, k0)` the bits of it and the
//                                    next along k; k0 is what k has grown by since `begin`. Beyond the matrix are zeros.
//                                    WIDE is the reader's `wide`, which says that pairs are single words,
//   struct Columns<COLUMNS>          with HALVES, a reader of the right matrix for a thread of a warp: `begin(k, column)` is called once,
//                                    with the first k and the first column, the others being 8 apart; `four<WIDE>(into, k0)` gives by
//                                    column the bits of elements k and k + 1, and of elements k + 8 and k + 9,
//   put(a, tile, row, column, sum)   which finishes an element that is within the result.
// Functions 0 to 3 make ever larger tiles, and function 4 what a family defines as ONE_BY_ONE.
// Arguments: sizes 0 to 2 are M, N and K, and size 13 says how threads walk over the left matrix
// (0 along k, 1 along rows, 2 along 8 rows and then along k), size 14 over the right one (0 along columns, 1 along k).
//
// In f32 an element is one chain over ascending k, whatever the tile, of which a link is a fused multiply-add. On tensor cores a
// link adds 16 products, and K is cut into PARTS parts of as many links each, more or less one: an element is the sum of the parts'
// chains, in ascending order from zero, whatever the tile. Elements are loaded into registers `AHEAD` steps before they are used.

#define LINE 4
#define PARTS 8

// The place (row, k) of unit i of a matrix of ROWS by DEPTH units, and the distance along k from one unit of a thread to its next.
template <int ROWS, int DEPTH>
DEVICE void unit_of(int walk, int i, int* row, int* k) {
  if (walk == 0) {
    *row = i / DEPTH;
    *k = i % DEPTH;
  } else if (walk == 1) {
    *row = i % ROWS;
    *k = i / ROWS;
  } else {
    *row = i / (8 * DEPTH) * 8 + i % 8;
    *k = i / 8 % DEPTH;
  }
}

#if HALVES
// Adds 16 products per element to a 16 by 8 tile of sums, which the 32 threads of a warp hold.
#ifndef CONVOKE_HOST
DEVICE void multiply(f16, f32* sum, const u32* left, const u32* right) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
DEVICE void multiply(bf16, f32* sum, const u32* left, const u32* right) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
#else
// The threads of a warp take turns, so each shows its operands to the others, and takes its sums from all of them.
DEVICE f32 half_of(u32 pair, int i) { return widen(L{(u16)(pair >> (16 * i))}); }
static thread_local u32 shown[256][6];
DEVICE void multiply(L, f32* sum, const u32* left, const u32* right) {
  const int own = threadIdx.x, warp = own / 32 * 32, group = own % 32 / 4, four = own % 4;
  memcpy(shown[own], left, 16);
  memcpy(shown[own] + 4, right, 8);
  __syncwarp();
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) {
      const int at = k % 8 / 2, column = four * 2 + i % 2;
      u32 x = shown[warp + group * 4 + at][i / 2 + k / 8 * 2], y = shown[warp + column * 4 + at][4 + k / 8];
      sum[i] += half_of(x, k % 2) * half_of(y, k % 2);
    }
  __syncwarp();
}
#endif

// The first link of a part, of so many links. The parts of a short K may be empty, which adds a zero.
DEVICE int part_at(int part, int links) { return (int)((i64)links * part / PARTS); }

// Tiles of 16 * DOWN by 8 * ACROSS. Each warp makes one part of all elements, from operands that it loads straight into the registers
// of its tensor core's steps: where few tiles are to be made, that keeps more of a multiprocessor busy than one chain does.
template <bool WIDE, int DOWN>
DEVICE void load_left(Left<2 * DOWN>& left, int k0, u32 (*into)[4]) {
#pragma unroll
  for (int i = 0; i < DOWN; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) into[i][e] = left.template pair<WIDE>(2 * i + e % 2, k0 + e / 2 * 8);
}
template <int DOWN, int ACROSS, int AHEAD>
DEVICE void part_tiles(const Arguments& a) {
  const int EDGE = 16 * DOWN;
  static_assert(16 * DOWN == 8 * ACROSS, "tiles are square");
  SHARED f32 shared[PARTS * EDGE * EDGE];
  const int thread = threadIdx.x, warp = thread / 32, group = thread % 32 / 4, four = thread % 4;
  const i64 m = a.sizes[0], n = a.sizes[1];
  const int links = (int)((a.sizes[2] + 15) / 16), begin = part_at(warp, links), end = part_at(warp + 1, links);
  for (i64 number = blockIdx.x; number < a.elements; number += gridDim.x) {
    const Tile tile(a, number, EDGE);
    Left<2 * DOWN> left(a, tile);
    Columns<ACROSS> right(a, tile);
    const int k_begin = begin * 16 + four * 2;
#pragma unroll
    for (int i = 0; i < 2 * DOWN; i++) left.begin(i, k_begin, tile.row0 + group + i * 8, 0);
    right.begin(k_begin, tile.column0 + group);
    f32 sum[DOWN][ACROSS][4] = {};
    u32 x[AHEAD][DOWN][4], y[AHEAD][ACROSS][2];
    for (int first = begin - AHEAD; first < end; first += AHEAD) {
#pragma unroll
      for (int ahead = 0; ahead < AHEAD; ahead++) {
        const int link = first + ahead;
        if (link >= begin && link < end) {
#pragma unroll
          for (int i = 0; i < DOWN; i++)
#pragma unroll
            for (int j = 0; j < ACROSS; j++) multiply(L{}, sum[i][j], x[ahead][i], y[ahead][j]);
        }
        if (link + AHEAD < end) {
          const int k0 = (link + AHEAD - begin) * 16;
          if (left.wide)
            load_left<true, DOWN>(left, k0, x[ahead]);
          else
            load_left<false, DOWN>(left, k0, x[ahead]);
          if (right.wide)
            right.template four<true>(y[ahead], k0);
          else
            right.template four<false>(y[ahead], k0);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
      for (int j = 0; j < ACROSS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          shared[(warp * EDGE + i * 16 + group + e / 2 * 8) * EDGE + j * 8 + four * 2 + e % 2] = sum[i][j][e];
    __syncthreads();
    for (int item = thread; item < EDGE * EDGE; item += 256) {
      const i64 row = tile.row0 + item / EDGE, column = tile.column0 + item % EDGE;
      f32 total = 0.0f;
      for (int part = 0; part < PARTS; part++) total += shared[part * EDGE * EDGE + item];
      if (row < m && column < n) put(a, tile, row, column, total);
    }
    __syncthreads();
  }
}

// Loads the pairs of a thread.
template <bool WIDE, int COUNT, typename Reader>
DEVICE void load_pairs(Reader& reader, int k0, u32* into) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) into[i] = reader.template pair<WIDE>(i, k0);
}

// Tiles of 32 * SIZE by 32 * SIZE, of which a warp makes 16 * SIZE by 8 * SIZE, one part of K after the other.
template <int SIZE, int DEPTH, int AHEAD>
DEVICE void tiles(const Arguments& a) {
  const int EDGE = 32 * SIZE, PAIRS = DEPTH / 2, PITCH = PAIRS + LINE, COUNT = EDGE * PAIRS / 256;
  SHARED u32 shared[4 * EDGE * PITCH];
  const int thread = threadIdx.x, warp = thread / 32, group = thread % 32 / 4, four = thread % 4;
  const int own_row = warp / 4 * 16 * SIZE, own_column = warp % 4 * 8 * SIZE;
  const i64 m = a.sizes[0], n = a.sizes[1];
  const int depth = (int)a.sizes[2], steps = (depth + DEPTH - 1) / DEPTH, links = (depth + 15) / 16;
  const int left_walk = (int)a.sizes[13], right_walk = 1 - (int)a.sizes[14];
  for (i64 number = blockIdx.x; number < a.elements; number += gridDim.x) {
    const Tile tile(a, number, EDGE);
    int part = 0, part_end = 0, left_places[COUNT], right_places[COUNT];
    Left<COUNT> left(a, tile);
    Right<COUNT> right(a, tile);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      int row, column, k;
      unit_of<EDGE, PAIRS>(left_walk, thread + i * 256, &row, &k);
      left.begin(i, 2 * k, tile.row0 + row, 2 * (256 / EDGE));
      left_places[i] = row * PITCH + k;
      unit_of<EDGE, PAIRS>(right_walk, thread + i * 256, &column, &k);
      right.begin(i, 2 * k, tile.column0 + column, 2 * (256 / EDGE));
      right_places[i] = column * PITCH + k;
    }
    f32 sum[SIZE][SIZE][4] = {}, total[SIZE][SIZE][4] = {};
    // The end of the next part that is not empty.
    auto next_part = [&]() {
      for (int last = part_end; part_end == last && part < PARTS;) part_end = part_at(++part, links);
    };
    next_part();
    // Adds the chain of a part to the total, and begins the next.
    auto end_part = [&]() {
#pragma unroll
      for (int i = 0; i < SIZE; i++)
#pragma unroll
        for (int j = 0; j < SIZE; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            total[i][j][e] += sum[i][j][e];
            sum[i][j][e] = 0.0f;
          }
      next_part();
    };
    u32 lefts[AHEAD][COUNT], rights[AHEAD][COUNT];
    auto load = [&](int step, u32* into_left, u32* into_right) {
      if (left.wide)
        load_pairs<true, COUNT>(left, step * DEPTH, into_left);
      else
        load_pairs<false, COUNT>(left, step * DEPTH, into_left);
      if (right.wide)
        load_pairs<true, COUNT>(right, step * DEPTH, into_right);
      else
        load_pairs<false, COUNT>(right, step * DEPTH, into_right);
    };
    for (int first = -AHEAD; first < steps; first += AHEAD) {
#pragma unroll
      for (int ahead = 0; ahead < AHEAD; ahead++) {
        const int step = first + ahead;
        const bool works = step >= 0 && step < steps;
        u32* l = shared + (step & 1) * 2 * EDGE * PITCH;
        u32* r = l + EDGE * PITCH;
        if (works) {
#pragma unroll
          for (int i = 0; i < COUNT; i++) {
            l[left_places[i]] = lefts[ahead][i];
            r[right_places[i]] = rights[ahead][i];
          }
          __syncthreads();
        }
        if (step + AHEAD < steps) load(step + AHEAD, lefts[ahead], rights[ahead]);
        if (works) {
#pragma unroll
          for (int k16 = 0; k16 < DEPTH / 16; k16++) {
            u32 x[SIZE][4], y[SIZE][2];
#pragma unroll
            for (int i = 0; i < SIZE; i++) {
              const u32* at = l + (own_row + i * 16 + group) * PITCH + k16 * 8 + four;
              x[i][0] = at[0];
              x[i][1] = at[8 * PITCH];
              x[i][2] = at[4];
              x[i][3] = at[8 * PITCH + 4];
            }
#pragma unroll
            for (int j = 0; j < SIZE; j++) {
              const u32* at = r + (own_column + j * 8 + group) * PITCH + k16 * 8 + four;
              y[j][0] = at[0];
              y[j][1] = at[4];
            }
#pragma unroll
            for (int i = 0; i < SIZE; i++)
#pragma unroll
              for (int j = 0; j < SIZE; j++) multiply(L{}, sum[i][j], x[i], y[j]);
            if (step * (DEPTH / 16) + k16 + 1 == part_end) end_part();
          }
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIZE; i++)
#pragma unroll
      for (int j = 0; j < SIZE; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const i64 row = tile.row0 + own_row + i * 16 + group + e / 2 * 8;
          const i64 column = tile.column0 + own_column + j * 8 + four * 2 + e % 2;
          if (row < m && column < n) put(a, tile, row, column, total[i][j][e]);
        }
  }
}
CROWDED_KERNEL(0, 2) { part_tiles<1, 2, 2>(a); }
CROWDED_KERNEL(1, 2) { part_tiles<2, 4, 1>(a); }
KERNEL(2) { tiles<2, 64, 1>(a); }
KERNEL(3) { tiles<4, 32, 1>(a); }
#else
// Tiles of 16 * SIZE by 16 * SIZE, of which a thread makes every sixteenth row and column.
template <int SIZE, int DEPTH, int AHEAD>
DEVICE void tiles(const Arguments& a) {
  const int EDGE = 16 * SIZE, PITCH = DEPTH + LINE, COUNT = EDGE * DEPTH / 256;
  SHARED float4 memory[4 * EDGE * PITCH / LINE];
  f32* shared = (f32*)memory;
  const int thread = threadIdx.x, own_row = thread / 16, own_column = thread % 16;
  const i64 m = a.sizes[0], n = a.sizes[1];
  const int depth = (int)a.sizes[2], steps = (depth + DEPTH - 1) / DEPTH;
  const int left_walk = (int)a.sizes[13], right_walk = 1 - (int)a.sizes[14];
  for (i64 number = blockIdx.x; number < a.elements; number += gridDim.x) {
    const Tile tile(a, number, EDGE);
    int left_places[COUNT], right_places[COUNT];
    Left<COUNT> left(a, tile);
    Right<COUNT> right(a, tile);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      int row, column, k;
      unit_of<EDGE, DEPTH>(left_walk, thread + i * 256, &row, &k);
      left.begin(i, k, tile.row0 + row, 256 / EDGE);
      left_places[i] = row * PITCH + k;
      unit_of<EDGE, DEPTH>(right_walk, thread + i * 256, &column, &k);
      right.begin(i, k, tile.column0 + column, 256 / EDGE);
      right_places[i] = column * PITCH + k;
    }
    f32 sum[SIZE][SIZE] = {};
    f32 lefts[AHEAD][COUNT], rights[AHEAD][COUNT];
    auto load = [&](int step, f32* into_left, f32* into_right) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        into_left[i] = left.one(i, step * DEPTH);
        into_right[i] = right.one(i, step * DEPTH);
      }
    };
    for (int first = -AHEAD; first < steps; first += AHEAD) {
#pragma unroll
      for (int ahead = 0; ahead < AHEAD; ahead++) {
        const int step = first + ahead;
        const bool works = step >= 0 && step < steps;
        f32* l = shared + (step & 1) * 2 * EDGE * PITCH;
        f32* r = l + EDGE * PITCH;
        if (works) {
#pragma unroll
          for (int i = 0; i < COUNT; i++) {
            l[left_places[i]] = lefts[ahead][i];
            r[right_places[i]] = rights[ahead][i];
          }
          __syncthreads();
        }
        if (step + AHEAD < steps) load(step + AHEAD, lefts[ahead], rights[ahead]);
        if (works) {
          if (depth - step * DEPTH >= DEPTH) {
#pragma unroll
            for (int k = 0; k < DEPTH; k += LINE) {
              float4 x[SIZE], y[SIZE];
#pragma unroll
              for (int i = 0; i < SIZE; i++) {
                x[i] = *(const float4*)(l + (own_row + i * 16) * PITCH + k);
                y[i] = *(const float4*)(r + (own_column + i * 16) * PITCH + k);
              }
#pragma unroll
              for (int i = 0; i < SIZE; i++)
#pragma unroll
                for (int j = 0; j < SIZE; j++) {
                  f32 s = fmaf(x[i].x, y[j].x, sum[i][j]);
                  s = fmaf(x[i].y, y[j].y, s);
                  s = fmaf(x[i].z, y[j].z, s);
                  sum[i][j] = fmaf(x[i].w, y[j].w, s);
                }
            }
          } else {
            // A zero beyond K is not added, since it could change the sign of a zero.
            for (int k = 0; k < depth - step * DEPTH; k++)
#pragma unroll
              for (int i = 0; i < SIZE; i++)
#pragma unroll
                for (int j = 0; j < SIZE; j++)
                  sum[i][j] = fmaf(l[(own_row + i * 16) * PITCH + k], r[(own_column + j * 16) * PITCH + k], sum[i][j]);
          }
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIZE; i++)
#pragma unroll
      for (int j = 0; j < SIZE; j++) {
        const i64 row = tile.row0 + own_row + i * 16, column = tile.column0 + own_column + j * 16;
        if (row < m && column < n) put(a, tile, row, column, sum[i][j]);
      }
  }
}
CROWDED_KERNEL(0, 2) { tiles<1, 32, 2>(a); }
CROWDED_KERNEL(1, 2) { tiles<2, 32, 1>(a); }
KERNEL(2) { tiles<4, 16, 2>(a); }
KERNEL(3) { tiles<8, 16, 1>(a); }
#endif
#ifdef ONE_BY_ONE
KERNEL(4) { one_by_one(a); }
#endif
