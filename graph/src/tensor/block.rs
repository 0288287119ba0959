//! Memory that tensors lie in: blocks, and regions that blocks are cut from.
//!
//! Invariants
//! 1. A block is aligned to [`ALIGN`], and no other block has its bytes until it is dropped.
//! 2. A region lives as long as any block that was cut from it.
//! 3. A cover outlives the memory that it accounts for, or takes that memory over.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::offsets::{ALIGN, Offsets};
use crate::segment::Segment;
use crate::tensor::error::TensorError;

/// Blocks of this many bytes or more have a mapping each, in huge pages. Memory that was never touched costs a page
/// fault per page, and with small pages these faults take longer than a fast network takes to fill the memory.
pub const LARGE: usize = 4 << 20;
/// The size and alignment of the system's huge pages, in bytes.
const HUGE_PAGE: usize = 2 << 20;
/// Least number of bytes that are mapped before a large block; after it, at least a page is. A kernel's masked load may
/// begin before the block or end after it: processors skip the lanes that are masked off, slowly if their page is not
/// mapped, and QEMU's emulation of AVX reads them all.
const MARGIN: usize = 64 << 10;
/// By how much the mapping of a large block is longer than the block, in bytes.
const SURPLUS: usize = MARGIN + HUGE_PAGE;

/// A block of memory. Its bytes are zero unless the memory was used before.
pub struct Block {
    ptr: NonNull<u8>,
    len: usize,
    home: Home,
    /// The value that accounts for the block; it is dropped after the memory is released.
    cover: Option<Cover>,
}

/// Accounts for memory, as a reservation does, for as long as it lives.
pub trait MemoryAccount: Any + Send + Sync {
    /// Takes the memory of a block that nobody uses any more, to release it or to keep it for another block. Blocks
    /// that are cut from a region or lie in a segment do not come here.
    fn take(&self, memory: Block) {
        drop(memory);
    }
}

/// The value that accounts for the memory of one block.
pub type Cover = Box<dyn MemoryAccount>;

/// The destination of a block's memory when the block is dropped.
enum Home {
    Allocator,
    /// A mapping that is [`SURPLUS`] longer than the block; it is unmapped.
    Mapping(NonNull<c_void>),
    /// The mapping of a segment that is the whole block; it is unmapped.
    Segment(NonNull<c_void>, Arc<Segment>),
    /// The bytes return to the region that the block was cut from at this offset.
    Region(Arc<Region>, u64),
    /// Another block has taken over the memory, so that nothing is released.
    Elsewhere,
}

// SAFETY: a Block owns its memory exclusively; access goes through & and &mut as usual.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    fn layout(len: usize) -> std::alloc::Layout {
        // SAFETY: ALIGN is a power of two; `len` was checked to round up without overflow in `zeroed`.
        unsafe { std::alloc::Layout::from_size_align_unchecked(len.max(1), ALIGN) }
    }

    /// Allocates a block of `len` zero bytes.
    pub fn zeroed(len: usize) -> Result<Block, TensorError> {
        if len > isize::MAX as usize - ALIGN {
            return Err(TensorError::OutOfMemory { bytes: len });
        }
        if len >= LARGE {
            return Self::mapped(len).ok_or(TensorError::OutOfMemory { bytes: len });
        }
        // SAFETY: the layout has a size of at least one byte.
        let ptr = unsafe { std::alloc::alloc_zeroed(Self::layout(len)) };
        let ptr = NonNull::new(ptr).ok_or(TensorError::OutOfMemory { bytes: len })?;
        Ok(Block {
            ptr,
            len,
            home: Home::Allocator,
            cover: None,
        })
    }

    /// Allocates a block of `len` zero bytes that `cover` accounts for.
    pub fn covered(len: usize, cover: Cover) -> Result<Block, TensorError> {
        Ok(Self::zeroed(len)?.with_cover(cover))
    }

    /// The same block, which `cover` accounts for. No other does yet, since each takes the memory over.
    pub fn with_cover(mut self, cover: Cover) -> Block {
        debug_assert!(self.cover.is_none(), "a block has one cover");
        self.cover = Some(cover);
        self
    }

    /// The value that accounts for the block; `None` where there is none, as for a block that is cut from a region.
    pub fn cover(&self) -> Option<&dyn Any> {
        Some(self.cover.as_deref()?)
    }

    /// Allocates a block of `len` zero bytes that peers on this host can read, or returns `None` where the system has
    /// no such memory.
    pub fn shared(len: usize) -> Option<Block> {
        let (segment, mapping) = Segment::create(len)?;
        Some(Block {
            ptr: mapping.cast(),
            len,
            home: Home::Segment(mapping, segment),
            cover: None,
        })
    }

    fn mapped(len: usize) -> Option<Block> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, placed by the system, touches nothing that is there.
        let start = unsafe {
            let length = len.checked_add(SURPLUS)?;
            mmap_anonymous(std::ptr::null_mut(), length, rights, MapFlags::PRIVATE).ok()?
        };
        let mapping = NonNull::new(start)?;
        // SAFETY: the mapping is longer than MARGIN. Aligning skips less than HUGE_PAGE, by which it is longer than the
        // block and the margin.
        let ptr = unsafe {
            let least = mapping.cast::<u8>().add(MARGIN);
            least.add(least.align_offset(HUGE_PAGE))
        };
        // The advice covers whole huge pages only: one for the rest would take more memory than the block has bytes.
        let whole = len / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the range lies inside the mapping; the advice changes no contents. If refused, pages are small.
        let _ = unsafe { madvise(ptr.as_ptr().cast(), whole, Advice::LinuxHugepage) };
        Some(Block {
            ptr,
            len,
            home: Home::Mapping(mapping),
            cover: None,
        })
    }

    /// The length of the block in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the block is cut from a region.
    #[inline]
    pub fn is_of_region(&self) -> bool {
        matches!(self.home, Home::Region(..))
    }

    /// The segment that the block lies in and the block's offset there, if peers can read the block.
    pub fn segment(&self) -> Option<(&Arc<Segment>, u64)> {
        match &self.home {
            Home::Segment(_, segment) => Some((segment, 0)),
            Home::Region(region, offset) => {
                let (segment, at) = region.memory.segment()?;
                Some((segment, at + offset))
            }
            Home::Allocator | Home::Mapping(_) | Home::Elsewhere => None,
        }
    }

    /// The bytes of the block.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ptr is valid for len initialised bytes (zeroed at allocation) while self lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes of the block, for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and &mut self excludes other access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(cover) = &self.cover
            && matches!(self.home, Home::Allocator | Home::Mapping(_))
        {
            return cover.take(Block {
                ptr: self.ptr,
                len: self.len,
                home: std::mem::replace(&mut self.home, Home::Elsewhere),
                cover: None,
            });
        }
        match &self.home {
            Home::Elsewhere => {}
            // SAFETY: allocated in `zeroed` with the same layout, and freed only here.
            Home::Allocator => unsafe {
                std::alloc::dealloc(self.ptr.as_ptr(), Self::layout(self.len));
            },
            Home::Mapping(mapping) => {
                // SAFETY: mapped in `mapped` with this length, and unmapped only here.
                let _ = unsafe { rustix::mm::munmap(mapping.as_ptr(), self.len + SURPLUS) };
            }
            Home::Segment(mapping, _) => {
                // SAFETY: mapped in `Segment::create` with this length, and unmapped only here.
                let _ = unsafe { rustix::mm::munmap(mapping.as_ptr(), self.len) };
            }
            Home::Region(region, offset) => region.give(*offset, self.len),
        }
    }
}

/// Memory that blocks are cut from again and again. Pages that were used once stay with the process, so that using them
/// again costs no page faults.
pub struct Region {
    memory: Block,
    offsets: Mutex<Offsets>,
    /// The sum of the lengths of the blocks that are in use, in bytes.
    asked: AtomicU64,
}

impl Region {
    /// Makes a region of `len` bytes that `cover` accounts for; no block is cut from it yet.
    pub fn new(len: usize, cover: Cover) -> Result<Arc<Region>, TensorError> {
        Ok(Self::of(Block::covered(len, cover)?))
    }

    /// Makes a region that peers on this host can read or, where the system has no such memory, one that they cannot.
    pub fn shared(len: usize, cover: Cover) -> Result<Arc<Region>, TensorError> {
        match Block::shared(len) {
            Some(mut memory) => {
                memory.cover = Some(cover);
                Ok(Self::of(memory))
            }
            None => Self::new(len, cover),
        }
    }

    fn of(memory: Block) -> Arc<Region> {
        Arc::new(Region {
            offsets: Mutex::new(Offsets::new(memory.len as u64)),
            asked: AtomicU64::new(0),
            memory,
        })
    }

    fn offsets(&self) -> MutexGuard<'_, Offsets> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that blocks in use take, their lengths rounded up to [`ALIGN`].
    pub fn used(&self) -> u64 {
        self.offsets().used()
    }

    /// Bytes of the blocks in use, without the rounding of [`Region::used`].
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Cuts a block of `len` bytes with unspecified content, or returns `None` where there is no room for it.
    pub fn block(self: &Arc<Self>, len: usize) -> Option<Block> {
        let offset = self.offsets().take(len as u64)?;
        self.asked.fetch_add(len as u64, Ordering::Relaxed);
        // SAFETY: `Offsets` handed out `offset..offset + len`, which lies inside the region and is nobody else's
        // until it is given back. Nobody else forms references to those bytes: `memory` itself is never read.
        let ptr = unsafe { self.memory.ptr.add(offset as usize) };
        Some(Block {
            ptr,
            len,
            home: Home::Region(self.clone(), offset),
            cover: None,
        })
    }

    fn give(&self, offset: u64, len: usize) {
        self.asked.fetch_sub(len as u64, Ordering::Relaxed);
        self.offsets().give(offset, len as u64);
    }
}

/// Bytes of memory that a region of `len` bytes takes once its first `used` bytes were used: a large region takes
/// memory by huge pages, as they are touched.
pub fn touched(len: u64, used: u64) -> u64 {
    match len < LARGE as u64 {
        true => len,
        false => used
            .checked_next_multiple_of(HUGE_PAGE as u64)
            .map_or(len, |pages| pages.min(len)),
    }
}

#[cfg(test)]
impl MemoryAccount for Arc<()> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_are_aligned_zero_and_theirs_alone() {
        for len in [LARGE - 1, LARGE, 2 * LARGE + 3] {
            let mut blocks = [(); 3].map(|()| Block::zeroed(len).unwrap());
            for (fill, block) in blocks.iter_mut().enumerate() {
                assert!(block.bytes().iter().all(|b| *b == 0), "{len}");
                assert_eq!(block.bytes().as_ptr() as usize % ALIGN, 0);
                block.bytes_mut().fill(fill as u8 + 1);
            }
            for (fill, block) in blocks.iter().enumerate() {
                assert!(block.bytes().iter().all(|b| *b == fill as u8 + 1), "{len}");
            }
        }
    }

    #[test]
    fn large_blocks_have_mapped_pages_on_both_sides() {
        for len in [LARGE, LARGE + 1, 2 * LARGE] {
            let blocks = [(); 3].map(|()| Block::zeroed(len).unwrap());
            for block in &blocks {
                let Home::Mapping(mapping) = block.home else {
                    panic!("no mapping for {len} bytes")
                };
                let before = block.ptr.addr().get() - mapping.addr().get();
                assert!((MARGIN..SURPLUS).contains(&before), "{len}: {before}");
            }
        }
    }

    /// Keeps the memory that it accounts for.
    #[derive(Clone, Default)]
    struct Keeper(Arc<Mutex<Vec<Block>>>);

    impl MemoryAccount for Keeper {
        fn take(&self, memory: Block) {
            self.0.lock().unwrap().push(memory);
        }
    }

    #[test]
    fn the_memory_of_a_dropped_block_goes_to_its_cover() {
        for len in [100, LARGE + 1] {
            let keeper = Keeper::default();
            let block = |memory: Block| memory.with_cover(Box::new(keeper.clone()));
            let mut first = block(Block::zeroed(len).unwrap());
            let at = first.bytes().as_ptr();
            first.bytes_mut().fill(7);
            drop(first);
            let kept = keeper.0.lock().unwrap().pop().unwrap();
            assert!(kept.cover().is_none(), "the keeper does not keep itself");
            let again = block(kept);
            assert_eq!((again.bytes().as_ptr(), again.bytes()[len - 1]), (at, 7));
            drop(again);
            assert_eq!(keeper.0.lock().unwrap().drain(..).count(), 1);
            // A cover is dropped with its block, after the memory.
            assert_eq!(Arc::strong_count(&keeper.0), 1);
            // A block that is cut from a region returns there.
            let region = Region::new(1000, Box::new(keeper.clone())).unwrap();
            drop(region.block(100));
            assert!(keeper.0.lock().unwrap().is_empty());
        }
    }

    #[test]
    fn blocks_of_a_region_are_apart_and_outlive_its_owner() {
        let region = Region::new(1000, Box::new(Arc::new(()))).unwrap();
        let mut blocks: Vec<Block> = [1, 100, 64].map(|n| region.block(n).unwrap()).into();
        assert!(region.block(1000 - 256 + 1).is_none(), "no room");
        for (fill, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.bytes().as_ptr() as usize % ALIGN, 0);
            block.bytes_mut().fill(fill as u8 + 1);
        }
        drop(region);
        for (fill, block) in blocks.iter().enumerate() {
            assert!(block.bytes().iter().all(|b| *b == fill as u8 + 1));
        }
    }

    #[test]
    fn a_large_region_takes_what_was_used() {
        assert_eq!(touched(1000, 1), 1000);
        assert_eq!(touched(16 << 20, 1), 2 << 20);
        assert_eq!(touched((16 << 20) + 1, 16 << 20), 16 << 20);
        assert_eq!(touched((16 << 20) + 1, (16 << 20) + 1), (16 << 20) + 1);
        assert_eq!(touched(u64::MAX, u64::MAX), u64::MAX);
    }
}
