//! How this process takes memory from the kernel, and gives it back.

use std::hint::black_box;
use std::time::Duration;

/// More than any page of the allocator's has.
const MUCH: usize = 16 << 20;

/// How long the allocator keeps what was freed, in case it is wanted again, and a little.
pub const KEPT_FOR: Duration = Duration::from_secs(2);

/// Has the kernel hand out memory in small pages, whatever the allocator asks for: of a huge page all is cleared and held for
/// the first byte that is used, and none is given back before the last is free.
pub fn take_small_pages() {
    #[cfg(target_os = "linux")]
    // An older kernel may not know it: then all is as it would be without.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Has the allocator look whether there is something to give back: it looks when somebody wants more than it has at hand, and
/// whoever is idle wants nothing. The memory is not touched, so it is never there.
pub fn give_back() {
    drop(black_box(Vec::<u8>::with_capacity(MUCH)));
}
