
// Runs the blocks of a launch one after the other, and the threads of each in turns from barrier to barrier.
static thread_local const Arguments* arguments;
static void fiber() {
  kernel(*arguments);
  fibers[threadIdx.x].ended = true;
}
extern "C" void convoke_run(const Arguments* a, unsigned blocks) {
  const int threads = 256;
  arguments = a;
  blockDim.x = threads;
  gridDim.x = (int)blocks;
  fibers = new Fiber[threads];
  for (int block = 0; block < gridDim.x; block++) {
    blockIdx.x = block;
    for (int t = 0; t < threads; t++) {
      Fiber& f = fibers[t];
      f.ended = false;
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack;
      f.context.uc_stack.ss_size = sizeof(f.stack);
      f.context.uc_link = &scheduler;
      makecontext(&f.context, fiber, 0);
    }
    for (bool any = true; any;) {
      any = false;
      for (int t = 0; t < threads; t++) {
        if (fibers[t].ended) continue;
        threadIdx.x = t;
        swapcontext(&scheduler, &fibers[t].context);
        any = true;
      }
    }
  }
  delete[] fibers;
}
