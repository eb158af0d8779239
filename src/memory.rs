//! How this process takes memory from the kernel, and returns it.

use std::hint::black_box;
use std::time::Duration;

/// The bytes of an allocation that is larger than any page of the allocator.
const MUCH: usize = 16 << 20;

/// A little more than the time for which the allocator keeps freed memory for reuse.
pub const KEPT_FOR: Duration = Duration::from_secs(2);

/// Makes the kernel use small pages, whatever the allocator requests: a huge page is cleared and held as a whole once its first
/// byte is used, and is returned only when its last byte is free.
pub fn take_small_pages() {
    #[cfg(target_os = "linux")]
    // An old kernel may not know this setting; then it has no effect.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Makes the allocator return unused memory: it does so only when it is asked for more than it has available, which an idle process
/// never does. The memory that is requested here is not touched, so it never becomes resident.
pub fn give_back() {
    drop(black_box(Vec::<u8>::with_capacity(MUCH)));
}
