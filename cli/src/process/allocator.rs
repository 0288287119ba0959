//! Settings of the system's allocator.

/// Makes the allocator return blocks of 128 KiB and more to the system when they are freed. glibc starts with that
/// threshold, but raises it with each large block that is freed, and keeps freed blocks for each thread that allocated
/// them: a process that once held a model or large tensors would stay that large, and a process whose threads hand
/// tensors to each other would grow.
pub fn keep_nothing_large() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers; an allocator that does not know the setting returns 0 and changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}
