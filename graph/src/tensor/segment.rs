//! Memory that processes of one host share: one process writes a segment, others read it.
//!
//! A segment is a sealed memory file: its length never changes, and only the mapping of the process that made it can be
//! written.
//!
//! Invariants
//! 1. No process maps a file that could become shorter: reading a page that is gone would end the process.
//! 2. Bytes that are lent are neither written nor used for something else until the borrower has released them.

use std::any::Any;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::offsets::ALIGN;

/// The type of the file system that memory files with ordinary pages are in, as `fstatfs` reports it.
const TMPFS: u64 = 0x0102_1994;

/// The number of the next segment of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A callback that runs when the segment is dropped.
type EndCallback = Box<dyn FnOnce() + Send>;

/// A segment that this process made.
pub struct Segment {
    number: u64,
    len: usize,
    file: OwnedFd,
    at_end: Mutex<Vec<EndCallback>>,
}

impl Segment {
    /// Creates a segment of `len` zero bytes and maps it; the caller has to unmap it. Returns `None` where the system
    /// provides no such memory.
    pub(crate) fn create(len: usize) -> Option<(Arc<Segment>, NonNull<c_void>)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // The file is never executed. Some systems want that declared, and older ones do not know the flag.
        let file = memfd_create("convoke", flags | MemfdFlags::NOEXEC_SEAL);
        let file = file.or_else(|_| memfd_create("convoke", flags)).ok()?;
        ftruncate(&file, len as u64).ok()?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, placed by the system, touches nothing that is there.
        let start = unsafe { mmap(none, len, rights, MapFlags::SHARED, &file, 0).ok()? };
        let start = NonNull::new(start)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        if fcntl_add_seals(&file, seals).is_err() {
            // SAFETY: mapped above, and no other code knows the address.
            let _ = unsafe { munmap(start.as_ptr(), len) };
            return None;
        }
        // SAFETY: the range is the mapping; the advice changes no contents. If refused, pages are small.
        let _ = unsafe { madvise(start.as_ptr(), len, Advice::LinuxHugepage) };
        let segment = Segment {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            len,
            file,
            at_end: Mutex::default(),
        };
        Some((Arc::new(segment), start))
    }

    /// The number of the segment, which no other segment of this process ever has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The length of the segment in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory file, which other processes map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Calls `then` when the segment is dropped, on the thread that drops it.
    pub fn at_end(&self, then: impl FnOnce() + Send + 'static) {
        let mut at_end = self.at_end.lock().unwrap_or_else(PoisonError::into_inner);
        at_end.push(Box::new(then));
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let at_end = self.at_end.get_mut();
        let at_end = std::mem::take(at_end.unwrap_or_else(PoisonError::into_inner));
        at_end.into_iter().for_each(|then| then());
    }
}

/// Why a file that a peer sent is not mapped as a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSegment {
    /// The file could become shorter.
    #[error("the file is not sealed")]
    Unsealed,
    /// The file's pages may be missing when they are read: they are huge pages, of which the system has few.
    #[error("the file is not of ordinary memory")]
    Extraordinary,
    /// The file has another length than the peer said.
    #[error("the file has another length")]
    Length,
    /// The system refused to map the file.
    #[error("the file cannot be mapped")]
    Unmappable,
}

/// A segment of another process, mapped for reading.
pub struct PeerSegment {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is memory that this process only reads.
unsafe impl Send for PeerSegment {}
// SAFETY: as above.
unsafe impl Sync for PeerSegment {}

impl PeerSegment {
    /// Maps a file that a peer sent, of which the peer says that it has `len` bytes.
    pub fn map(file: &OwnedFd, len: u64) -> Result<PeerSegment, NoSegment> {
        let len = usize::try_from(len).ok();
        let len = len.filter(|len| (1..=isize::MAX as usize).contains(len));
        let len = len.ok_or(NoSegment::Length)?;
        let seals = fcntl_get_seals(file).map_err(|_| NoSegment::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(NoSegment::Unsealed);
        }
        let of = fstatfs(file).map_err(|_| NoSegment::Unmappable)?.f_type;
        if of as u64 & u64::from(u32::MAX) != TMPFS {
            return Err(NoSegment::Extraordinary);
        }
        let is = fstat(file).map_err(|_| NoSegment::Unmappable)?.st_size;
        if is != len as i64 {
            return Err(NoSegment::Length);
        }
        let (none, read) = (std::ptr::null_mut(), ProtFlags::READ);
        // SAFETY: a new mapping, placed by the system, touches nothing that is there.
        let start = unsafe { mmap(none, len, read, MapFlags::SHARED, file, 0) };
        let start = start.ok().and_then(|s| NonNull::new(s.cast()));
        let start = start.ok_or(NoSegment::Unmappable)?;
        Ok(PeerSegment { start, len })
    }

    /// The length of the segment in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment has no bytes, which is never so: [`PeerSegment::map`] refuses empty files.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for PeerSegment {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and unmapped only here.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Bytes that a peer lent from its segment, until this value is dropped.
pub struct SegmentLoan {
    of: Arc<PeerSegment>,
    offset: usize,
    len: usize,
    /// Tells the peer, when dropped, that the bytes are no longer used; the value itself is never read.
    _loan: Box<dyn Any + Send + Sync>,
}

impl SegmentLoan {
    /// Borrows `len` bytes from `offset` on. Returns `None` where they do not all lie inside the segment, or `offset`
    /// is not aligned to [`ALIGN`]. `loan` is dropped when the bytes are no longer used.
    pub fn new(
        of: Arc<PeerSegment>,
        offset: u64,
        len: usize,
        loan: Box<dyn Any + Send + Sync>,
    ) -> Option<SegmentLoan> {
        let offset = usize::try_from(offset).ok()?;
        let inside = offset.checked_add(len)? <= of.len;
        let aligned = offset.is_multiple_of(ALIGN);
        (inside && aligned).then_some(SegmentLoan {
            of,
            offset,
            len,
            _loan: loan,
        })
    }

    /// The lent bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` checked that the range lies inside the mapping, which lives as long as self; all its bytes are
        // initialised. Its owner, a member of this cluster, writes no block that it has lent.
        unsafe { std::slice::from_raw_parts(self.of.start.as_ptr().add(self.offset), self.len) }
    }

    /// The number of lent bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes are lent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` with the bytes from `at` on. The peer may be writing them meanwhile, which makes the copied bytes
    /// unspecified. Returns `false`, and copies nothing, where fewer bytes than `out` has are left.
    #[must_use]
    pub fn copy_to(&self, at: usize, out: &mut [u8]) -> bool {
        let inside = at.checked_add(out.len()).is_some_and(|end| end <= self.len);
        if inside {
            // SAFETY: `new` checked that the range lies inside the mapping, which lives as long as self; `out` is
            // memory of this process alone. No reference to bytes that the peer may write is formed, and any byte is a
            // valid one.
            unsafe {
                let from = self.of.start.as_ptr().add(self.offset + at);
                std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
            }
        }
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Block, Region};
    use crate::{DType, Tensor};

    fn shared(len: usize) -> Block {
        Block::shared(len).unwrap()
    }

    fn map(block: &Block) -> Arc<PeerSegment> {
        let (segment, _) = block.segment().unwrap();
        let file = segment.file().try_clone_to_owned().unwrap();
        Arc::new(PeerSegment::map(&file, segment.len() as u64).unwrap())
    }

    #[test]
    fn what_one_writes_the_other_reads() {
        let mut block = shared(10_000);
        block.bytes_mut()[64..68].copy_from_slice(&[1, 2, 3, 4]);
        let lent = SegmentLoan::new(map(&block), 64, 4, Box::new(())).unwrap();
        assert_eq!(lent.bytes(), [1, 2, 3, 4]);
        // The mapping outlives the segment.
        drop(block);
        assert_eq!(lent.bytes(), [1, 2, 3, 4]);
    }

    #[test]
    fn what_lies_outside_or_between_is_not_lent() {
        let of = map(&shared(10_000));
        let lent = |offset, len| SegmentLoan::new(of.clone(), offset, len, Box::new(())).is_some();
        assert!(lent(0, 10_000) && lent(9_984, 16));
        assert!(!lent(0, 10_001) && !lent(9_984, 17) && !lent(32, 4));
        assert!(!lent(u64::MAX - 63, 64) && !lent(64, usize::MAX));
    }

    #[test]
    fn what_lies_inside_is_copied() {
        let mut block = shared(10_000);
        block.bytes_mut()[64..68].copy_from_slice(&[1, 2, 3, 4]);
        let lent = SegmentLoan::new(map(&block), 64, 4, Box::new(())).unwrap();
        let check = |at, len: usize, copied: Option<&[u8]>| {
            let mut out = vec![9; len];
            let done = lent.copy_to(at, &mut out);
            assert_eq!(done.then_some(&out[..]), copied, "{len} from {at}");
            assert!(done || out.iter().all(|b| *b == 9));
        };
        check(0, 4, Some(&[1, 2, 3, 4]));
        check(1, 2, Some(&[2, 3]));
        check(4, 0, Some(&[]));
        check(1, 4, None);
        check(usize::MAX, 1, None);
    }

    #[test]
    fn a_file_is_mapped_only_where_it_cannot_shrink() {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        let map = |len| PeerSegment::map(&file, len).err();
        assert_eq!(map(4096), Some(NoSegment::Unsealed));
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert_eq!(map(4096), None);
        for wrong in [0, 4095, 4097, u64::MAX] {
            assert_eq!(map(wrong), Some(NoSegment::Length), "{wrong}");
        }
    }

    #[test]
    fn a_file_of_huge_pages_is_not_mapped() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // The file is made even where the system has no huge pages, but not by every system.
        let Ok(file) = memfd_create("test", flags) else {
            return;
        };
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let map = PeerSegment::map(&file, 2 << 20);
        assert_eq!(map.err(), Some(NoSegment::Extraordinary));
    }

    #[test]
    fn a_peer_can_neither_write_a_segment_nor_change_its_length() {
        let block = shared(4096);
        let (segment, _) = block.segment().unwrap();
        assert!(ftruncate(segment.file(), 1).is_err());
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, placed by the system, touches nothing that is there.
        let writable = unsafe { mmap(none, 4096, both, MapFlags::SHARED, segment.file(), 0) };
        assert!(writable.is_err());
        assert!(rustix::io::pwrite(segment.file(), &[1], 0).is_err());
    }

    #[test]
    fn a_tensor_that_is_lent_is_read_and_never_written() {
        let mut block = shared(4096);
        block.bytes_mut()[64] = 7;
        let lent = SegmentLoan::new(map(&block), 64, 6, Box::new(())).unwrap();
        let mut t = Tensor::lent(DType::U8, &[2, 3], lent);
        assert_eq!(t.bytes(), [7, 0, 0, 0, 0, 0]);
        let mut row = t.outer_range(0, 1).unwrap();
        assert_eq!(row.as_slice::<u8>().unwrap(), [7, 0, 0]);
        for t in [&mut t, &mut row] {
            assert!(t.is_borrowed() && !t.is_unique() && t.bytes_mut().is_none());
            assert!(t.segment().is_none());
        }
        // A lent tensor is not unique even without another view, since the peer has the bytes too.
        drop(t);
        assert!(row.is_borrowed() && !row.is_unique() && row.bytes_mut().is_none());
    }

    #[test]
    fn a_region_in_a_segment_says_where_its_tensors_lie() {
        let region = Region::shared(4096, Box::new(Arc::new(()))).unwrap();
        let first = region.block(100).unwrap();
        let (number, at) = first.segment().map(|(s, at)| (s.number(), at)).unwrap();
        let mut t = Tensor::from_block(DType::U8, &[2, 64], region.block(128).unwrap());
        t.bytes_mut().unwrap()[64] = 9;
        let row = t.outer_range(1, 2).unwrap();
        let (segment, offset) = row.segment().unwrap();
        assert_eq!((segment.number(), at, offset), (number, 0, 128 + 64));
        let lent = SegmentLoan::new(map(&first), offset, 64, Box::new(())).unwrap();
        assert_eq!(lent.bytes(), row.bytes());
        // A tensor outside shared memory lies in no segment.
        assert!(Tensor::scalar(1f32).segment().is_none());
    }

    #[test]
    fn its_end_is_told() {
        let block = shared(100);
        let (tell, told) = std::sync::mpsc::channel();
        let (segment, _) = block.segment().unwrap();
        segment.at_end(move || tell.send(()).unwrap());
        assert!(told.try_recv().is_err());
        drop(block);
        assert!(told.try_recv().is_ok());
    }
}
