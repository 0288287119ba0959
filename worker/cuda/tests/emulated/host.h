// What a source needs in order to be compiled for the CPU: the qualifiers, the places of threads, and the conversions of
// halves. The threads of a block are contexts of one thread of the CPU, which change places at a barrier.

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct Index {
  int x;
};
static thread_local Index blockIdx, threadIdx, blockDim, gridDim;

#define CONVOKE_HOST
#define DEVICE static inline
#define DEVICE_CALL static
#define DEVICE_MEMBER
#define KERNEL(number)                                                                                     \
  static void kernel_##number(const Arguments& a);                                                         \
  extern "C" void convoke_##number(const Arguments* a, unsigned blocks) { run(kernel_##number, a, blocks); } \
  static void kernel_##number(const Arguments& a)
#define CROWDED_KERNEL(number, blocks) KERNEL(number)
#define SHARED static thread_local

template <typename To, typename From>
static inline To same_bits(From x) {
  To y;
  memcpy(&y, &x, sizeof(y));
  return y;
}
static inline float half_to_f32(unsigned short x) { return (float)same_bits<_Float16>(x); }
static inline unsigned short f32_to_half(float x) { return same_bits<unsigned short>((_Float16)x); }
static inline unsigned int bits_of(float x) { return same_bits<unsigned int>(x); }
static inline float of_bits(unsigned int x) { return same_bits<float>(x); }
static inline unsigned long long bits_of(double x) { return same_bits<unsigned long long>(x); }
static inline double of_bits(unsigned long long x) { return same_bits<double>(x); }

struct alignas(16) float4 {
  float x, y, z, w;
};

// Runs a kernel; run.h has the text.
struct Arguments;
typedef void (*Kernel)(const Arguments&);
static void run(Kernel kernel, const Arguments* a, unsigned blocks);

// The barrier at which a thread waits.
enum Barrier { NONE, WARP, BLOCK };

// A thread of a block, with its stack.
struct Fiber {
  ucontext_t context;
  char stack[16 << 10];
  bool ended;
  Barrier at;
};
static thread_local Fiber* fibers;
static thread_local ucontext_t scheduler;

static void wait_at(Barrier barrier) {
  fibers[threadIdx.x].at = barrier;
  swapcontext(&fibers[threadIdx.x].context, &scheduler);
}
static void __syncthreads() { wait_at(BLOCK); }
static void __syncwarp() { wait_at(WARP); }
