//! Memory that tensors lie in: blocks, and regions that blocks are cut from.
//!
//! Invariants
//! 1. A block is aligned to [`ALIGN`] and its bytes are its own until it is dropped.
//! 2. A region lives as long as any block that was cut from it.
//! 3. A block that is kept to be used again keeps its cover; there is one at most.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::offsets::Offsets;
use crate::segment::Segment;
use crate::tensor::TensorError;

/// Alignment of every buffer in bytes: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// Blocks of this size and more are mapped, each by itself and in huge pages: memory that was never touched costs a
/// page fault per page, which in small pages is slower than a fast network fills it.
pub const LARGE: usize = 4 << 20;
/// What the system's huge pages are aligned to.
const HUGE_PAGE: usize = 2 << 20;

/// A block of memory, zero where nobody has used it before.
pub struct Block {
    ptr: NonNull<u8>,
    len: usize,
    home: Home,
    /// Let go of after the memory.
    cover: Option<Cover>,
}

/// What memory is accounted with.
pub type Cover = Box<dyn Any + Send + Sync>;

/// Where a block goes when it is dropped.
enum Home {
    Allocator,
    /// Kept for the next one of its length, where somebody does, else unmapped: a mapping [`HUGE_PAGE`] longer than the
    /// block.
    Mapping(NonNull<c_void>, Option<Weak<Spare>>),
    /// Unmapped: a segment that is the block.
    Segment(NonNull<c_void>, Arc<Segment>),
    /// Back to the region that it was cut from at an offset.
    Region(Arc<Region>, u64),
    /// Another block has its memory now.
    Kept,
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

    /// `len` zero bytes.
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

    /// `len` zero bytes that `cover` accounts for.
    pub fn covered(len: usize, cover: Cover) -> Result<Block, TensorError> {
        let mut block = Self::zeroed(len)?;
        block.cover = Some(cover);
        Ok(block)
    }

    /// What accounts for it, where it is not cut from a region.
    pub fn cover(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.cover.as_deref()
    }

    /// `len` zero bytes that peers on this host can read, where the system has such memory.
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
            let length = len.checked_add(HUGE_PAGE)?;
            mmap_anonymous(std::ptr::null_mut(), length, rights, MapFlags::PRIVATE).ok()?
        };
        let mapping = NonNull::new(start)?;
        let skip = start.cast::<u8>().align_offset(HUGE_PAGE);
        // SAFETY: aligning skips less than HUGE_PAGE, by which the mapping is longer.
        let ptr = unsafe { mapping.cast::<u8>().add(skip) };
        // Whole pages only: the last one would take more memory than the block has bytes.
        let whole = len / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the range lies inside the mapping; the advice changes no contents. Refused, pages are small.
        let _ = unsafe { madvise(ptr.as_ptr().cast(), whole, Advice::LinuxHugepage) };
        Some(Block {
            ptr,
            len,
            home: Home::Mapping(mapping, None),
            cover: None,
        })
    }

    /// Its length.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is cut from a region.
    #[inline]
    pub fn is_of_region(&self) -> bool {
        matches!(self.home, Home::Region(..))
    }

    /// The segment that it lies in and where, where peers can read it.
    pub fn segment(&self) -> Option<(&Arc<Segment>, u64)> {
        match &self.home {
            Home::Segment(_, segment) => Some((segment, 0)),
            Home::Region(region, offset) => {
                let (segment, at) = region.memory.segment()?;
                Some((segment, at + offset))
            }
            Home::Allocator | Home::Mapping(..) | Home::Kept => None,
        }
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ptr is valid for len initialised bytes (zeroed at allocation) while self lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Its bytes, to write.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and &mut self excludes other access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let again = match &mut self.home {
            Home::Mapping(mapping, keeper) => keeper.take().map(|keeper| (*mapping, keeper)),
            _ => None,
        };
        if let Some((mapping, keeper)) = again
            && let Some(keeper) = keeper.upgrade()
        {
            self.home = Home::Kept;
            return keeper.keep(Block {
                ptr: self.ptr,
                len: self.len,
                home: Home::Mapping(mapping, None),
                cover: self.cover.take(),
            });
        }
        match &self.home {
            Home::Kept => {}
            // SAFETY: allocated in `zeroed` with the same layout, and freed only here.
            Home::Allocator => unsafe {
                std::alloc::dealloc(self.ptr.as_ptr(), Self::layout(self.len));
            },
            Home::Mapping(mapping, _) => {
                // SAFETY: mapped in `mapped` with this length, and unmapped only here.
                let _ = unsafe { rustix::mm::munmap(mapping.as_ptr(), self.len + HUGE_PAGE) };
            }
            Home::Segment(mapping, _) => {
                // SAFETY: mapped in `Segment::create` with this length, and unmapped only here.
                let _ = unsafe { rustix::mm::munmap(mapping.as_ptr(), self.len) };
            }
            Home::Region(region, offset) => region.give(*offset, self.len),
        }
    }
}

/// Keeps the large block that was dropped last, for the next one of its length: touching new memory takes longer than
/// filling it.
#[derive(Default)]
pub struct Spare(Mutex<Option<Block>>);

impl Spare {
    fn kept(&self) -> MutexGuard<'_, Option<Block>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, block: Block) {
        let before = self.kept().replace(block);
        drop(before);
    }

    /// The block that is kept, where it has this length; else it is let go of, so that nothing is kept beside what is made
    /// instead.
    pub fn take(&self, len: usize) -> Option<Block> {
        let kept = self.kept().take();
        kept.filter(|block| block.len == len)
    }

    /// Has the block come back when it is dropped, where it is a large one.
    pub fn awaits(self: &Arc<Self>, mut block: Block) -> Block {
        if let Home::Mapping(_, keeper) = &mut block.home {
            *keeper = Some(Arc::downgrade(self));
        }
        block
    }
}

/// Memory that blocks are cut from again and again: what was used once stays with the process, so that using it
/// again costs no page faults.
pub struct Region {
    memory: Block,
    offsets: Mutex<Offsets>,
    /// Bytes that were asked for and not given back.
    asked: AtomicU64,
}

impl Region {
    /// A region of `len` bytes that `cover` accounts for; none is used.
    pub fn new(len: usize, cover: Cover) -> Result<Arc<Region>, TensorError> {
        Ok(Self::of(Block::covered(len, cover)?))
    }

    /// A region that peers on this host can read, where the system has such memory; else one as any.
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

    /// Bytes that blocks take.
    pub fn used(&self) -> u64 {
        self.offsets().used()
    }

    /// Bytes of the blocks themselves.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// A block of `len` bytes, of unspecified content, where there is room for it.
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

/// Bytes of memory that a region of `len` bytes takes once its first `used` bytes were used: large ones are taken
/// page by page.
pub fn touched(len: u64, used: u64) -> u64 {
    match len < LARGE as u64 {
        true => len,
        false => used
            .checked_next_multiple_of(HUGE_PAGE as u64)
            .map_or(len, |pages| pages.min(len)),
    }
}

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
    fn the_last_large_block_is_used_again_by_one_of_its_length() {
        let covers = Arc::new(());
        let (spare, len) = (Arc::<Spare>::default(), LARGE + 1);
        let block = |len| {
            let block = Block::covered(len, Box::new(covers.clone())).unwrap();
            spare.awaits(block)
        };
        let mut first = block(len);
        let at = first.bytes().as_ptr();
        first.bytes_mut().fill(7);
        drop((first, block(100)));
        assert_eq!(Arc::strong_count(&covers), 2, "the large one is kept");
        let again = spare.awaits(spare.take(len).unwrap());
        assert_eq!((again.bytes().as_ptr(), again.bytes()[len - 1]), (at, 7));
        // One at most is kept, and none that is of another length than what is asked for.
        drop((again, block(len)));
        assert_eq!(Arc::strong_count(&covers), 2);
        assert!(spare.take(len + 1).is_none());
        assert_eq!(Arc::strong_count(&covers), 1);
        // Nor is any once nobody keeps it.
        let last = block(len);
        drop((spare, last));
        assert_eq!(Arc::strong_count(&covers), 1);
    }

    #[test]
    fn blocks_of_a_region_are_apart_and_outlive_its_owner() {
        let region = Region::new(1000, Box::new(())).unwrap();
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
