//! How this process takes memory from the kernel.

/// Has the kernel hand out memory in small pages, whatever the allocator asks for: of a huge page all is cleared and held for
/// the first byte that is used, and none is given back before the last is free.
pub fn take_small_pages() {
    #[cfg(target_os = "linux")]
    // An older kernel may not know it: then all is as it would be without.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
