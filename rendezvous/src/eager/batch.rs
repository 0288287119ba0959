//! Frames of commands or reports of eager sessions: how they are built, and who asks for them.

use crate::frame::{EAGER, HEAD, MAX_BODY};

/// The size of a body, in bytes, from which on a frame is closed: a receiver does other work between frames.
const CUT: usize = 8 << 10;

/// A builder of frames: commands or reports are appended one after the other, and the builder cuts them into frames.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The offset at which the open frame begins, if there is one.
    open: Option<usize>,
}

impl Batch {
    /// The most bytes that one command or report may have.
    pub const MOST: usize = MAX_BODY / 2;

    /// The buffer to whose end the next command or report is to be appended.
    pub fn body(&mut self) -> &mut Vec<u8> {
        if self
            .open
            .is_some_and(|at| self.bytes.len() - at - HEAD >= CUT)
        {
            self.close();
        }
        if self.open.is_none() {
            self.open = Some(self.bytes.len());
            self.bytes.extend([EAGER, 0, 0, 0, 0, 0, 0, 0]);
        }
        &mut self.bytes
    }

    fn close(&mut self) {
        if let Some(at) = self.open.take() {
            let len = (self.bytes.len() - at - HEAD) as u32;
            self.bytes[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
        }
    }

    /// How many bytes wait to be sent.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no bytes wait to be sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Moves all frames to the end of `out`.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        self.close();
        if out.is_empty() {
            std::mem::swap(out, &mut self.bytes);
        } else {
            out.append(&mut self.bytes);
        }
        // The memory of a burst is released.
        self.bytes.shrink_to(MAX_BODY);
    }
}

/// A source of batches: the writer of a lane asks it for frames once it can send them.
pub trait Batches: Send + Sync {
    /// Appends the waiting frames, as whole frames, and removes them from the source.
    fn take(&self, out: &mut Vec<u8>);
}

/// The bodies of a sequence of whole frames of eager work.
pub(crate) fn bodies(mut frames: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (head, rest) = frames.split_at_checked(HEAD)?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (body, rest) = rest.split_at_checked(len)?;
        frames = rest;
        Some(body)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;

    #[test]
    fn what_is_written_comes_back_in_frames_below_the_limit() {
        let mut batch = Batch::default();
        let written: Vec<Vec<u8>> = (0..200u32)
            .map(|i| vec![i as u8; 1 + (i as usize * 37) % 4000])
            .collect();
        for w in &written {
            batch.body().extend(w);
        }
        let mut out = Vec::new();
        batch.take(&mut out);
        assert!(batch.is_empty());
        let read: Vec<&[u8]> = bodies(&out).collect();
        assert_eq!(read.concat(), written.concat());
        assert!(read.len() > 1 && read.iter().all(|b| b.len() <= MAX_BODY));
        let head: [u8; HEAD] = out[..HEAD].try_into().unwrap();
        assert_eq!(Frame::head(&head).unwrap(), (EAGER, read[0].len()));
    }
}
