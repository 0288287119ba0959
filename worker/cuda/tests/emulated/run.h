
// Runs the blocks of a launch one after the other, and the threads of each in turns from barrier to barrier. A thread goes on when all
// threads that the barrier is of have come to it or have ended.
static thread_local const Arguments* arguments;
static thread_local Kernel running;
static void fiber() {
  running(*arguments);
  fibers[threadIdx.x].ended = true;
}
// Lets threads [from, to) go on where they all wait at a barrier of this size.
static bool released(int from, int to, Barrier barrier) {
  bool any = false;
  for (int t = from; t < to; t++) {
    if (fibers[t].ended) continue;
    if (fibers[t].at != barrier) return false;
    any = true;
  }
  for (int t = from; t < to; t++) fibers[t].at = NONE;
  return any;
}
static void run(Kernel kernel, const Arguments* a, unsigned blocks) {
  const int threads = 256, warp = 32;
  running = kernel;
  arguments = a;
  blockDim.x = threads;
  gridDim.x = (int)blocks;
  fibers = new Fiber[threads];
  for (int block = 0; block < gridDim.x; block++) {
    blockIdx.x = block;
    for (int t = 0; t < threads; t++) {
      Fiber& f = fibers[t];
      f.ended = false;
      f.at = NONE;
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack;
      f.context.uc_stack.ss_size = sizeof(f.stack);
      f.context.uc_link = &scheduler;
      makecontext(&f.context, fiber, 0);
    }
    for (int ended = 0; ended < threads;) {
      bool any = released(0, threads, BLOCK);
      for (int t = 0; t < threads; t += warp) any |= released(t, t + warp, WARP);
      for (int t = 0; t < threads; t++) {
        if (fibers[t].ended || fibers[t].at != NONE) continue;
        threadIdx.x = t;
        swapcontext(&scheduler, &fibers[t].context);
        ended += fibers[t].ended;
        any = true;
      }
      // Threads that wait for others who wait elsewhere would hang on a GPU.
      if (!any) abort();
    }
  }
  delete[] fibers;
}
