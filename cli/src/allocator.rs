//! How the system's allocator keeps memory that was freed.

/// Has it return blocks of 128 KiB and more to the system when they are freed. By itself glibc starts so, and with each
/// one that is freed keeps larger ones, for each thread that made them: a process that held a model or large tensors once
/// would stay as large, and one whose threads hand tensors to each other would grow.
pub fn keep_nothing_large() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers; an allocator that does not know the setting says so and goes on.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}
